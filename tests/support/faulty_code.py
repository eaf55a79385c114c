"""A user's module in which things go wrong on demand.

The variable FAULTS says what happens: "worker point count deed; ...". A worker comes to points: `start` (this
module is imported), `publish` (it holds a slot that it has written), `release` (it holds a slot that it has
taken), `wait` (for parameters), `send` (a report to the parent), `step` of its environments, `stage` (in a
compiled program). The deed is done when a process has come to a point for the count-th time: kill, stop,
raise, sleep. Every fault happens once in a run, unless its count ends in "!", which means every time. The
directory FAULTY_HOME remembers what has happened.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

from sherd import Algorithm, act, learn
from sherd.runtime import store, stream_ends, worker

SEEN = [f"{end}{env}" for env in range(4) for end in ("first", "last")] + ["growing", "behind"]
ME = multiprocessing.current_process().name
reached: Counter[str] = Counter()


def home() -> Path:
    """Where a run remembers its faults."""
    return Path(os.environ.get("FAULTY_HOME", "."))


def come_to(point: str) -> None:
    """Do what is to be done at this point, for the first time in the run."""
    reached[point] += 1
    for number, fault in enumerate(filter(None, os.environ.get("FAULTS", "").split(";"))):
        who, place, count, deed = fault.split()
        due = (who, place) == (ME, point) and reached[point] >= int(count.rstrip("!"))
        if due and (_claim(home() / f"fault-{number}") or count.endswith("!")):
            do(deed)


def _claim(file: Path) -> bool:
    with contextlib.suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL))
        return True
    return False


def do(deed: str) -> None:
    """The fault itself, with real signals."""
    if deed == "sleep":
        time.sleep(3600)
    if deed == "raise":
        raise ValueError(f"a fault of the user's in {ME}")
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[deed])


def _hook(kind: type, name: str) -> None:
    before = getattr(kind, name)

    def hooked(self: Any, *given: Any, **more: Any) -> Any:
        come_to(name)
        return before(self, *given, **more)

    setattr(kind, name, hooked)


if multiprocessing.parent_process() is not None:
    _hook(stream_ends.Writer, "publish")
    _hook(stream_ends.Reader, "release")
    _hook(store.StoreReader, "wait")
    _hook(worker.Context, "send")
    come_to("start")


class Numbered(gymnasium.Env):
    """Every observation of a run is another number, and numbers only grow: 10,000 x birth + steps."""

    observation_space: Any = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space: Any = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        with open(home() / "births", "ab") as file:
            file.write(b"x")
            file.flush()
            self.number = file.tell() * 10_000
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        come_to("step")
        self.steps += 1
        return self.observe(), 1.0, self.steps == 5, False, {}

    def observe(self) -> Any:
        self.number += 1
        return np.array([self.number, 1.0], np.float32)


def _in_stage(x: Any) -> Any:
    come_to("stage")
    return np.asarray(x)


@dataclass(frozen=True)
class Watched(Algorithm):
    """A linear policy by REINFORCE that reports which observations it has learnt from."""

    horizon: int = 8
    hooked: str = ""  # the stage in which things may go wrong: "act", "learn" or "apply"

    def init(self, key: Any) -> Any:
        del key
        return {"weights": jnp.zeros((self.spec.observation.shape[0] - 1, 2)), "age": jnp.zeros(())}

    def optimiser(self) -> Any:
        through = optax.stateless(lambda updates, _: jax.tree.map(self._pass_apply, updates))
        return optax.chain(through, optax.sgd(1e-2))

    def _pass_apply(self, x: Any) -> Any:
        return self._pass(x, self.hooked == "apply")

    def _pass(self, x: Any, here: bool) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(_in_stage, shape, x, vmap_method="expand_dims") if here else x

    @act
    def explore(self, params: Any, obs: Any, key: Any) -> Any:
        logits = self._pass(obs[..., 1:] @ params["weights"], self.hooked == "act")
        return jax.vmap(jax.random.categorical)(key, logits), jnp.broadcast_to(params["age"], obs.shape[:1])

    @act
    def exploit(self, params: Any, obs: Any) -> Any:
        return (obs[..., 1:] @ params["weights"]).argmax(-1)

    @learn
    def look(self, params: Any, rollout: Any) -> Any:
        numbers = self._pass(rollout.obs[..., 0], self.hooked == "learn")
        ends = [numbers[row, env] for env in range(4) for row in (0, -1)]
        growing = (jnp.diff(numbers, axis=0) > 0).all().astype(jnp.float32)
        return dict(zip(SEEN, [*ends, growing, (params["age"] - rollout.extra).max()]))

    def loss(self, params: Any, rollout: Any) -> Any:
        logits = jax.nn.log_softmax(rollout.obs[..., 1:] @ params["weights"])
        chosen = jnp.take_along_axis(logits, rollout.action[..., None], -1)[..., 0]
        return (
            -(chosen * rollout.reward).mean() - 100 * params["age"]
        )  # which so grows by 1 with every update

    def loop(self, env: Any, learner: Any) -> None:
        for _ in env.steps(self.horizon):
            action, age = self.explore(learner.params, env.obs)
            env.step(action, age)
        seen = self.look(learner.params, env.rollout)
        learner.report({name: seen[name] for name in SEEN})
        learner.step(self.loss, env.rollout)

    def play(self, env: Any, learner: Any) -> None:
        env.step(self.exploit(learner.params, env.obs))


@dataclass(frozen=True)
class Remembering(Watched):
    """The same, from a memory of the last steps."""

    def loop(self, env: Any, learner: Any, replay: Any) -> None:  # type: ignore[override]
        for _ in env.steps(self.horizon):
            action, age = self.explore(learner.params, env.obs)
            env.step(action, age)
        replay.add(env.rollout, capacity=64)
        for sample in replay.sample(16, times=2):
            learner.step(self.loss, sample.data)
