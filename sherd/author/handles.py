"""The handles a loop is written against. They are written once, over whichever backend is active.

`env` steps environments, `learner` holds parameters, `state` holds declared cells, `replay` remembers.
A handle never holds a value of the algorithm: everything lives in the backend's cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp

from sherd.author import ops
from sherd.author.actions import require_action
from sherd.author.algorithm import Algorithm
from sherd.author.replay import Replay
from sherd.author.stage import Backend, Op, key_kind
from sherd.author.types import EnvironmentStep, Transition, Tree, Update
from sherd.errors import UsageError, author_source, nearest
from sherd.spaces import Space


class Env:
    """The environments. `obs` is what to act on; `first` tells which episodes have just begun."""

    def __init__(self, backend: Backend, space: Space, stepping: EnvironmentStep) -> None:
        self._backend, self._space = backend, space
        self._op = Op("step", "env", stepping.function, "env")

    @property
    def obs(self) -> Tree:
        """The present observations, leaves [env, ...]."""
        return self._backend.read("env").obs

    @property
    def first(self) -> Any:
        """Whether the present observation begins an episode, [env]."""
        return self._backend.read("env").first

    @property
    def num_envs(self) -> int:
        """How many environments there are."""
        return self._backend.num_envs

    def step(self, action: Tree, extra: Tree = ()) -> Transition:
        """Step every environment; `extra` is recorded with the transition for learning."""
        require_action(self._space, self._backend.types_of(action), self.num_envs)
        state = self._backend.read("env")
        stepped, transition, episode = self._backend.call(self._op, (state, action))
        self._backend.write("env", stepped)
        # What acting saw and chose is named as itself, so that whoever already has it is not sent it again.
        seen = {"obs": state.obs, "action": action, "first": state.first, "extra": extra}
        made = {name: getattr(transition, name) for name in Transition._fields if name not in seen}
        whole = Transition(**seen, **made)
        self._backend.emit("rollout", whole)
        self._backend.emit("episode", episode)
        return whole

    def steps(self, count: int) -> Iterator[Any]:
        """Loop over `count` steps; call `env.step` once in each. `env.rollout` is then what happened."""
        yield from self._backend.scope("steps", count)

    @property
    def rollout(self) -> Transition:
        """The transitions of the last `env.steps` loop, leaves [time, env, ...]."""
        rollouts = self._backend.collected("rollout")
        if len(rollouts) != 1:
            raise UsageError(
                f"env.rollout needs a loop with exactly one env.step in it, but the last one had "
                f"{len(rollouts)}\n  at {author_source().quoted()}\n"
                "  fix: write `for _ in env.steps(n): ... env.step(action)` before reading it"
            )
        rollout: Transition = rollouts[0]
        return rollout

    def unroll(self, policy: Callable[..., Any], params: Tree, count: int) -> Transition:
        """`count` steps in which `policy(params, obs)` gives (action, extra)."""
        for _ in self.steps(count):
            chosen = policy(params, self.obs)
            made = self._backend.types_of(chosen)
            if not isinstance(made, tuple) or len(made) != 2:
                raise UsageError(
                    "env.unroll needs a stage that returns (action, extra), but "
                    f"{getattr(policy, '__name__', 'this one')} returns no pair\n"
                    f"  at {author_source().quoted()}\n"
                    "  fix: return action, {} from it, or write the loop: env.steps(n), env.step(action)"
                )
            self.step(*chosen)
        return self.rollout


class Learner:
    """The parameters and what changes them."""

    def __init__(self, backend: Backend, algorithm: Algorithm) -> None:
        self._backend = backend
        self._optimiser = algorithm.optimiser()

    @property
    def params(self) -> Tree:
        """The present parameters."""
        return self._backend.read("learner").params

    @property
    def iteration(self) -> Any:
        """The number of this training iteration, from 0."""
        return self._backend.iteration

    @property
    def progress(self) -> Any:
        """How much of the run is done, from 0 to 1: what schedules are functions of."""
        op = Op("progress", "learn", lambda iteration, total: jnp.minimum(iteration / total, 1.0))
        return self._backend.call(op, (self._backend.iteration, self._backend.total))

    @property
    def updates(self) -> Any:
        """How many updates were made; with several optimisers a dict, by part."""
        return self._backend.read("learner").updates

    def step(
        self,
        loss: Callable[..., Any],
        *args: Tree,
        part: str | None = None,
        scale: Any = 1.0,
        when: Any = True,
        stop_when: Callable[[Tree], Any] | None = None,
    ) -> Update:
        """One update from `loss(params, *args)`: a scalar, (scalar, metrics) or (scalar, metrics, rows).

        `rows` is what the caller wants back of each environment, such as new priorities.

        With several optimisers `part` says which part of the parameters is changed, and by which. `scale`
        multiplies the update (a schedule); `when` says whether to compute anything at all; once
        `stop_when(metrics)` is true, this update and the rest of the iteration's are left out.
        """
        backend, optimiser = self._backend, self._chosen(part)
        name = f"update_{part}" if part else "update"
        function, given = ops.gradient(loss, part), (self.params, *args)
        if when is not True:
            function, given = ops.Conditional(function), (when, *given)
        grad = Op(loss.__name__, "grad", function, key_kind(loss))
        grads, metrics, rows = backend.call(grad, given)
        apply = Op(name, "apply", ops.updating(optimiser, part, stop_when))
        learner = backend.read("learner")
        updated, report = backend.call(apply, (learner, grads, metrics, scale, when, backend.iteration))
        backend.write("learner", updated)
        backend.emit("metrics", report)
        return Update(metrics, rows)

    def _chosen(self, part: str | None) -> Any:
        """The optimiser of a part."""
        if isinstance(self._optimiser, dict):
            if part in self._optimiser:
                return self._optimiser[part]
            named = f"part {part!r} is none" if part else "no part is named, but there are several"
            raise UsageError(
                f"learner.step: {named} of the optimisers {', '.join(self._optimiser)}\n"
                f"  at {author_source().quoted()}\n"
                f"  fix: learner.step(..., part={next(iter(self._optimiser))!r})"
            )
        if part is not None:
            raise UsageError(
                f"learner.step: part {part!r} is named, but optimiser() gives one for all parameters\n"
                f"  at {author_source().quoted()}\n"
                f"  fix: let optimiser() return a dict with an entry {part!r}"
            )
        return self._optimiser

    def shuffled(self, batch: Tree, epochs: int, minibatches: int, sequences: bool = False) -> Iterator[Tree]:
        """Deal a batch (leaves [time, env, ...]) into minibatches, anew in every epoch.

        A minibatch takes the same number of steps from every environment. With `sequences` it takes
        whole environments instead, all steps in order, as recurrent learning needs.
        """
        for name, count in (("epochs", epochs), ("minibatches", minibatches)):
            if not isinstance(count, int) or count < 1:
                raise UsageError(
                    f"{name} is {count!r}, but must be 1 or more\n  at {author_source().quoted()}"
                )
        knobs = (("minibatches", minibatches), *((("sequences", True),) if sequences else ()))
        shuffle = Op("shuffle", "learn", ops.dealer(minibatches, sequences), "env", knobs)
        for _ in self._backend.scope("epochs", epochs):
            dealt = self._backend.call(shuffle, (batch,))
            for index in self._backend.scope("minibatches", minibatches):
                yield self._backend.call(Op("minibatch", "learn", ops.take), (dealt, index))

    def every(self, count: int, new: Tree, otherwise: Tree, part: str | None = None) -> Tree:
        """`new` when the number of updates (of a part) is a multiple of `count`, else `otherwise`."""
        self._chosen(part)
        op = Op(
            "every",
            "learn",
            lambda updates, a, b: ops.select(updates % count == 0, a, b),
            knobs=(("updates", count),),
        )
        made = self.updates if part is None else self.updates[part]
        return self._backend.call(op, (made, new, otherwise))

    def report(self, metrics: dict[str, Any]) -> None:
        """Add scalars to the run's metrics."""
        self._backend.emit("metrics", dict(metrics))


class State:
    """Declared state: read a cell as an attribute, write it by assigning to the attribute."""

    def __init__(self, backend: Backend, names: tuple[str, ...]) -> None:
        object.__setattr__(self, "_backend", backend)
        object.__setattr__(self, "_names", names)

    def __getattr__(self, name: str) -> Tree:
        self._require(name)
        return self._backend.read(name)

    def __setattr__(self, name: str, value: Tree) -> None:
        self._require(name)
        self._backend.write(name, value, once=True)

    def _require(self, name: str) -> None:
        if name not in self._names:
            hint = nearest(name, self._names) if self._names else "the algorithm's state() declares none"
            raise UsageError(f"no state cell {name!r}: {hint}\n  at {author_source().quoted()}")


def make_handles(
    backend: Backend, algorithm: Algorithm, cells: tuple[str, ...], stepping: EnvironmentStep
) -> dict[str, Any]:
    """All handles over a backend, by the names a loop asks for them."""
    return {
        "env": Env(backend, algorithm.spec.action, stepping),
        "learner": Learner(backend, algorithm),
        "state": State(backend, cells),
        "replay": Replay(backend),
    }
