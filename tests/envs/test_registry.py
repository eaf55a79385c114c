"""From names to environments."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
import textwrap

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from sherd.envs import describe, kind_of, make_graph, make_host
from sherd.envs.host.gymnasium import LoopEnv
from sherd.envs.host.vectorised import SameStepVectorEnv
from sherd.errors import UsageError
from sherd.spaces import EnvSpec, step_buffers


class Counter(gymnasium.Env):
    """Counts to `limit`."""

    observation_space, action_space = spaces.Box(-100, 100, (1,)), spaces.Discrete(2)

    def __init__(self, limit=3):
        self.limit = limit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        # A random start, so that rows with the same generator state would show.
        self.offset = self.np_random.uniform()
        return np.full(1, self.offset, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.full(1, self.count + self.offset, np.float32), 1.0, self.count == self.limit, False, {}


class GraphCounter:
    """The least that a graph environment is."""

    spec = EnvSpec("graph-counter", spaces.Box(0, 9, (1,)), spaces.Discrete(2), "graph")

    def reset(self, key):
        return 0, np.zeros(1)

    def step(self, key, state, action):
        return state + 1, np.zeros(1), 0.0, False, False


MODULE = """
    import gymnasium
    from tests.envs.test_registry import Counter, GraphCounter
    gymnasium.register("SherdCounter-v0", Counter)
    def short():
        return Counter(limit=1)
    graph = GraphCounter()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a user's module in the current directory."""
    name = f"user_module_{tmp_path.name.replace('-', '_')}"
    # The user's module cannot import this test by name, so it is handed over.
    monkeypatch.setitem(sys.modules, "tests.envs.test_registry", sys.modules[__name__])
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield name
    gymnasium.registry.pop("SherdCounter-v0", None)
    sys.modules.pop(name, None)


def test_kinds():
    assert kind_of("CartPole-v1") == kind_of("ALE/Pong-v5") == kind_of("envpool/Pong-v5") == "host"
    assert kind_of("graph/CartPole-v1") == kind_of("gymnax/CartPole-v1") == kind_of("brax/ant") == "graph"
    assert kind_of(Counter) == kind_of(lambda: Counter()) == "host"
    assert kind_of(GraphCounter()) == kind_of(lambda: GraphCounter()) == "graph"


def test_objects_and_module_strings(module):
    graph = GraphCounter()
    assert make_graph(graph) is graph
    assert isinstance(make_graph(GraphCounter), GraphCounter)
    assert describe(functools.partial(Counter, limit=2)).id == "Counter"
    assert kind_of(f"{module}:graph") == "graph"
    assert describe(f"{module}:graph") is GraphCounter.spec
    batch = make_host(f"{module}:short", 2, 0)
    assert batch.spec.id == f"{module}:short"
    out = step_buffers(batch.spec, 2)
    batch.reset(out.obs)
    batch.step(np.zeros(2, np.int32), out)
    assert out.terminated.all()
    assert describe(f"{module}:SherdCounter-v0").observation == Counter.observation_space
    with pytest.raises(UsageError, match="did you mean 'short'"):
        describe(f"{module}:shrt")
    with pytest.raises(UsageError, match="there is no module 'no_such_module'"):
        describe("no_such_module:thing")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("CartPole-v7", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("CartPole", "CartPole-v1"),
        ("HalfCheeta-v5", "HalfCheetah-v5"),
        ("Hoper-v3", "Hopper-v5"),
        ("Pong-v5", "ALE/Pong-v5"),
    ],
)
def test_a_wrong_id_is_corrected(wrong, right):
    with pytest.raises(UsageError) as caught:
        describe(wrong)
    assert f"did you mean '{right}'?" in str(caught.value)


def test_what_is_no_environment_is_refused():
    with pytest.raises(UsageError, match="pass a callable"):
        make_host(Counter(), 1, 0)
    with pytest.raises(UsageError, match="is not an environment"):
        describe(3)
    with pytest.raises(UsageError, match="returned a vector environment"):
        make_host(lambda: gymnasium.make_vec("CartPole-v1", 2), 1, 0)
    with pytest.raises(UsageError, match="use make_graph"):
        make_host(GraphCounter(), 1, 0)
    with pytest.raises(UsageError, match="use make_host"):
        make_graph("CartPole-v1")
    with pytest.raises(UsageError, match="takes no options"):
        make_graph("graph/CartPole-v1", gravity=1.0)
    with pytest.raises(UsageError, match="num_envs is 0"):
        make_host("CartPole-v1", 0, 0)
    with pytest.raises(UsageError, match="seed of zero or more"):
        make_host("Pendulum-v1", 1, -1)


def test_an_unsupported_space_is_named():
    class Worded(Counter):
        observation_space = spaces.Dict({"said": spaces.Text(3)})

    with pytest.raises(UsageError, match="leaf 'said' of the observation space is Text"):
        describe(Worded)


def test_missing_packages(monkeypatch):
    found, absent = importlib.util.find_spec, ("Box2D", "mujoco")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in absent else found(name, *rest)
    )
    monkeypatch.setitem(sys.modules, "Box2D", None)
    with pytest.raises(UsageError, match=r"LunarLander-v3 needs .*'Box2D'.*\n  fix: .*sherd\[box2d\]"):
        describe("LunarLander-v3")
    monkeypatch.setitem(sys.modules, "mujoco", None)
    for loaded in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, loaded)
    with pytest.raises(UsageError, match=r"Hopper-v5 needs .*'mujoco'.*\n.*sherd\[mujoco\]"):
        describe("Hopper-v5")
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(UsageError, match=r"sherd\[atari\]"):
        describe("ALE/Tennis-v5")
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(UsageError, match=r"sherd\[envpool\]"):
        describe("envpool/Acrobot-v1")


def sync_counters(mode):
    # Gymnasium's own batch of separate environments stands in for somebody's vectorised simulator.
    def entry(num_envs, **options):
        return gymnasium.vector.SyncVectorEnv([Counter] * num_envs, autoreset_mode=mode)

    return entry


@pytest.mark.parametrize(("mode", "adapter"), [("SameStep", SameStepVectorEnv), ("NextStep", LoopEnv)])
def test_vector_entry_points(mode, adapter):
    gymnasium.register("SherdVector-v0", Counter, vector_entry_point=sync_counters(mode))
    try:
        batch = make_host("SherdVector-v0", 3, seed=1, first_index=2)
    finally:
        del gymnasium.registry["SherdVector-v0"]
    assert isinstance(batch, adapter)
    by_hand = LoopEnv("by-hand", Counter, 3, seed=1, first_index=2)
    outs = [step_buffers(batch.spec, 3) for _ in range(2)]
    for one, out in zip((batch, by_hand), outs):
        one.reset(out.obs)
    np.testing.assert_array_equal(outs[0].obs, outs[1].obs)
    for _ in range(7):
        for one, out in zip((batch, by_hand), outs):
            one.step(np.zeros(3, np.int32), out)
        for field in ("obs", "next_obs", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(outs[0], field), getattr(outs[1], field))


def test_descriptions_are_remembered():
    built = []

    def factory():
        built.append(1)
        return Counter()

    assert describe(factory) is describe(factory)
    assert len(built) <= 2


def test_simulators_leave_jax_alone():
    code = (
        "import sys, numpy as np, sherd.envs as envs; from sherd.spaces import step_buffers\n"
        "for name in ('CartPole-v1', 'Pendulum-v1'):\n"
        "    batch = envs.make_host(name, 2, 0); out = step_buffers(batch.spec, 2); batch.reset(out.obs)\n"
        "    batch.step(np.zeros((2, *batch.spec.action.shape), np.int32), out)\n"
        "    assert not envs.check_env(name, steps=10)\n"
        "assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_an_environment_without_a_space_is_named():
    class Spaceless(gymnasium.Env):
        action_space = gymnasium.spaces.Discrete(2)

    with pytest.raises(UsageError, match="has no observation_space"):
        describe(Spaceless)
