"""Algorithm: what an author subclasses."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from sherd.author.types import Cell
from sherd.errors import UsageError, nearest
from sherd.spaces import EnvSpec

Bound = TypeVar("Bound", bound="Algorithm")


def _no_loop(self: Any) -> None:
    raise UsageError(f"{type(self).__name__} does not define loop(self, env, learner, ...)")


def _no_play(self: Any) -> None:
    raise UsageError(
        f"{type(self).__name__} cannot be evaluated: it does not define play(self, env, learner, ...)\n"
        "  fix: write the step you would demonstrate, e.g.  env.step(self.exploit(learner.params, env.obs))"
    )


@dataclass(frozen=True)
class Algorithm:
    """An RL algorithm: hyper-parameters as fields, pure functions as methods, one iteration as `loop`.

    Subclass it as a frozen dataclass. Its file knows nothing of machines, processes or devices.
    """

    @property
    def spec(self) -> EnvSpec:
        """The environment that this algorithm is bound to."""
        spec: EnvSpec | None = self.__dict__.get("_spec")
        if spec is None:
            raise UsageError(
                f"{type(self).__name__} is not bound to an environment yet\n"
                "  fix: use algorithm.bind(sherd.envs.describe(env_id)) when calling its methods by hand"
            )
        return spec

    def bind(self: Bound, spec: EnvSpec) -> Bound:
        """A copy that knows its environment: stages read `self.spec`."""
        copied = copy.copy(self)
        object.__setattr__(copied, "_spec", spec)
        return copied

    def init(self, key: Any) -> Any:
        """The initial parameters, any pytree of arrays."""
        raise UsageError(f"{type(self).__name__} does not define init(self, key) -> parameters")

    def optimiser(self) -> Any:
        """The Optax transformation that `learner.step` applies."""
        raise UsageError(f"{type(self).__name__} does not define optimiser(self) -> an Optax optimiser")

    def state(self, params: Any) -> dict[str, Cell]:
        """Declared state besides parameters: name -> `shared(...)` or `per_env(...)`."""
        del params
        return {}

    # `loop` is one training iteration and `play` one step of acting without exploration, for evaluation.
    # Each names as parameters the handles it needs, so subclasses differ in signature.
    loop: ClassVar[Any] = _no_loop
    play: ClassVar[Any] = _no_play

    @classmethod
    def playable(cls) -> bool:
        """Whether the algorithm says how to act in evaluation."""
        return cls.play is not _no_play


def call_with_handles(method: Callable[..., None], handles: dict[str, Any]) -> None:
    """Call a loop with the handles that its parameters name."""
    wanted = list(inspect.signature(method).parameters)
    for name in wanted:
        if name not in handles:
            code = method.__code__ if hasattr(method, "__code__") else None
            where = f"{code.co_filename}:{code.co_firstlineno}: " if code else ""
            raise UsageError(
                f"{where}{method.__qualname__} asks for a handle {name!r}, which does not exist; "
                f"{nearest(name, handles)}"
            )
    method(**{name: handles[name] for name in wanted})
