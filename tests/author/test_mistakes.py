"""What an author can get wrong is reported with the author's own file and line."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from small import Reinforce

import sherd
from sherd import UsageError, act, learn, per_env, shared, trace
from sherd.author.actions import require_action
from sherd.envs import describe

CARTPOLE = describe("CartPole-v1")


def line_of(function, text: str) -> str:
    """`file:line` of the line of a function that contains a text."""
    lines, start = inspect.getsourcelines(function)
    offset = next(i for i, line in enumerate(lines) if text in line)
    return f"{os.path.basename(inspect.getsourcefile(inspect.unwrap(function)) or '')}:{start + offset}"


def refused(algorithm, text: str, method: str = "loop") -> str:
    """The message with which tracing refuses an algorithm; it must name the guilty line."""
    with pytest.raises(UsageError) as caught:
        trace(algorithm, CARTPOLE)
    message = str(caught.value)
    assert line_of(getattr(type(algorithm), method), text) in message
    assert "fix:" in message
    return message


def test_a_sound_algorithm_has_no_warnings():
    assert trace(Reinforce(), CARTPOLE).warnings == ()


def test_hyper_parameter_never_read():
    @dataclass(frozen=True)
    class Forgetful(Reinforce):
        momentum: float = 0.9

    (warning,) = trace(Forgetful(), CARTPOLE).warnings
    assert "'momentum'" in warning
    assert "never read" in warning
    assert line_of(Forgetful, "momentum: float") in warning


def test_value_never_used():
    @dataclass(frozen=True)
    class Wasteful(Reinforce):
        def loop(self, env, learner):
            rollout = env.unroll(self.explore, learner.params, self.horizon)
            self.advantages(rollout)
            learner.step(self.loss, self.advantages(rollout))

    (warning,) = trace(Wasteful(), CARTPOLE).warnings
    assert "'advantages' is never used" in warning
    assert line_of(Wasteful.loop, "            self.advantages(rollout)\n") in warning


def test_part_of_a_result_never_used():
    @dataclass(frozen=True)
    class Wasteful(Reinforce):
        def loop(self, env, learner):
            for _ in env.steps(self.horizon):
                action, _ = self.explore(learner.params, env.obs)
                env.step(action)
            learner.step(self.loss, self.advantages(env.rollout))

    (warning,) = trace(Wasteful(), CARTPOLE).warnings
    assert "part 1 of the result of 'explore' is never used" in warning


def test_condition_on_a_traced_value_in_the_loop():
    @dataclass(frozen=True)
    class Conditional(Reinforce):
        def loop(self, env, learner):
            rollout = env.unroll(self.explore, learner.params, self.horizon)
            if learner.iteration:
                learner.step(self.loss, self.advantages(rollout))

    message = refused(Conditional(), "if learner.iteration")
    assert "Python condition" in message
    assert "when=" in message


def test_comparison_of_a_traced_value_in_the_loop():
    @dataclass(frozen=True)
    class Conditional(Reinforce):
        def loop(self, env, learner):
            rollout = env.unroll(self.explore, learner.params, self.horizon)
            if learner.iteration > 3:
                learner.step(self.loss, self.advantages(rollout))

    assert "arithmetic (gt)" in refused(Conditional(), "if learner.iteration > 3")


def test_condition_on_a_traced_value_in_a_stage():
    @dataclass(frozen=True)
    class Conditional(Reinforce):
        @learn
        def advantages(self, rollout):
            if rollout.reward.sum() > 0:
                return {"obs": rollout.obs, "action": rollout.action, "gain": rollout.reward}
            return {"obs": rollout.obs, "action": rollout.action, "gain": -rollout.reward}

    assert "Python condition" in refused(Conditional(), "if rollout.reward.sum() > 0", "advantages")


def test_arithmetic_in_the_loop():
    @dataclass(frozen=True)
    class Arithmetic(Reinforce):
        def loop(self, env, learner):
            for _ in env.steps(self.horizon):
                action, extra = self.explore(learner.params, env.obs * 2)
                env.step(action, extra)
            learner.step(self.loss, self.advantages(env.rollout))

    assert "do it in a stage" in refused(Arithmetic(), "env.obs * 2")


def test_a_python_number_from_a_traced_value():
    @dataclass(frozen=True)
    class Printing(Reinforce):
        def loop(self, env, learner):
            rollout = env.unroll(self.explore, learner.params, self.horizon)
            metrics = learner.step(self.loss, self.advantages(rollout)).metrics
            float(metrics["loss"])

    assert "Python number" in refused(Printing(), "float(metrics")


def test_side_effect_on_the_algorithm_in_a_stage():
    @dataclass(frozen=True)
    class Remembering(Reinforce):
        @learn
        def advantages(self, rollout):
            self.last = rollout
            return rollout

    assert "side effect" in refused(Remembering(), "self.last = rollout", "advantages")


KEPT = []


def test_side_effect_outside_a_stage_leaks():
    @dataclass(frozen=True)
    class Hoarding(Reinforce):
        @act
        def explore(self, params, obs, key):
            KEPT.append(obs * 2)
            return jax.vmap(jax.random.categorical)(key, obs @ params["w"]).astype(jnp.int32), {}

    with pytest.raises(UsageError, match="side effect: a traced value was stored"):
        trace(Hoarding(), CARTPOLE)
    KEPT.clear()


def test_a_value_hoarded_in_a_list_is_refused_outside_its_loop():
    @dataclass(frozen=True)
    class Hoarding(Reinforce):
        def loop(self, env, learner):
            kept = []
            for _ in env.steps(self.horizon):
                action, extra = self.explore(learner.params, env.obs)
                kept.append(extra)
                env.step(action, extra)
            learner.step(self.loss, self.mixed(self.advantages(env.rollout), kept[0]))

        @learn
        def mixed(self, batch, extra):
            return {**batch, "gain": batch["gain"] + extra["logits"].sum()}

    from sherd import check

    with pytest.raises(UsageError, match="outside the loop that defines it") as caught:
        check(trace(Hoarding(), CARTPOLE))
    assert line_of(Hoarding.loop, "learner.step(") in str(caught.value)


def test_a_stage_that_changes_its_mind():
    calls = []

    @dataclass(frozen=True)
    class Moody(Reinforce):
        @learn
        def advantages(self, rollout):
            calls.append(None)
            dtype = jnp.float32 if len(calls) == 1 else jnp.float16
            return {"obs": rollout.obs, "action": rollout.action, "gain": rollout.reward.astype(dtype)}

    message = refused(Moody(), "learner.step")
    assert "another dtype on a later pass" in message
    assert "'advantages'" in message


def test_a_stage_that_changes_its_structure():
    calls = []

    @dataclass(frozen=True)
    class Moody(Reinforce):
        @learn
        def advantages(self, rollout):
            calls.append(None)
            return {"obs": rollout.obs} if len(calls) == 1 else {"obs": rollout.obs, "more": rollout.obs}

    assert "another structure on a later pass" in refused(Moody(), "learner.step")


def test_a_cell_written_twice():
    @dataclass(frozen=True)
    class Twice(Reinforce):
        def state(self, params):
            return {"count": shared(jnp.int32(0))}

        @learn
        def more(self, count):
            return count + 1

        def loop(self, env, learner, state):
            rollout = env.unroll(self.explore, learner.params, self.horizon)
            state.count = self.more(state.count)
            learner.step(self.loss, self.advantages(rollout))
            state.count = self.more(state.count)  # again

    message = refused(Twice(), "# again")
    assert "written twice" in message
    assert line_of(Twice.loop, "state.count = self.more(state.count)\n") in message


def test_a_cell_given_another_type():
    @dataclass(frozen=True)
    class Retyped(Reinforce):
        def state(self, params):
            return {"count": shared(jnp.int32(0))}

        @learn
        def more(self, count):
            return count + 0.5

        def loop(self, env, learner, state):
            rollout = env.unroll(self.explore, learner.params, self.horizon)
            state.count = self.more(state.count)
            learner.step(self.loss, self.advantages(rollout))

    message = refused(Retyped(), "state.count = ")
    assert "int32[]" in message
    assert "float32[]" in message


def test_an_unknown_cell():
    @dataclass(frozen=True)
    class Misspelt(Reinforce):
        def state(self, params):
            return {"memory": per_env(jnp.zeros(()))}

        def loop(self, env, learner, state):
            rollout = env.unroll(self.explore, learner.params, self.horizon)
            state.memroy = state.memory
            learner.step(self.loss, self.advantages(rollout))

    with pytest.raises(UsageError, match="did you mean 'memory'"):
        trace(Misspelt(), CARTPOLE)


def test_a_plain_local_that_passes_from_turn_to_turn():
    @dataclass(frozen=True)
    class Local(Reinforce):
        @act
        def blend(self, old, new):
            return 0.5 * old + 0.5 * new

        def loop(self, env, learner):
            smooth = env.obs
            for _ in env.steps(self.horizon):
                smooth = self.blend(smooth, env.obs)
                action, extra = self.explore(learner.params, smooth)
                env.step(action, extra)
            learner.step(self.loss, self.advantages(env.rollout))

    message = refused(Local(), "self.blend(smooth, env.obs)")
    assert "plain local" in message
    assert "state()" in message


def test_a_loop_that_differs_in_its_second_turn():
    @dataclass(frozen=True)
    class Alternating(Reinforce):
        @act
        def other(self, params, obs):
            return (obs @ params["w"]).argmax(-1).astype(jnp.int32), {"logits": obs @ params["w"]}

        def loop(self, env, learner):
            for turn, _ in enumerate(env.steps(self.horizon)):
                stage = self.explore if turn == 0 else self.other
                action, extra = stage(learner.params, env.obs)  # differs
                env.step(action, extra)
            learner.step(self.loss, self.advantages(env.rollout))

    assert "did something else on its second turn" in refused(Alternating(), "# differs")


def test_a_loop_left_early():
    @dataclass(frozen=True)
    class Impatient(Reinforce):
        def loop(self, env, learner):
            for _ in env.steps(self.horizon):
                action, extra = self.explore(learner.params, env.obs)
                env.step(action, extra)
                break
            learner.step(self.loss, self.advantages(env.rollout))

    with pytest.raises(UsageError, match=r"left early|exactly one env\.step"):
        trace(Impatient(), CARTPOLE)


def test_an_unknown_handle():
    @dataclass(frozen=True)
    class Strange(Reinforce):
        def loop(self, env, lerner):
            pass

    with pytest.raises(UsageError, match="did you mean 'learner'"):
        trace(Strange(), CARTPOLE)


def test_a_loss_that_is_not_a_scalar():
    @dataclass(frozen=True)
    class Vector(Reinforce):
        def loss(self, params, batch):
            return batch["obs"] @ params["w"]

    with pytest.raises(UsageError, match="must return a scalar"):
        trace(Vector(), CARTPOLE)


def test_a_loop_without_environment_steps():
    from sherd import check

    @dataclass(frozen=True)
    class Idle(Reinforce):
        def loop(self, env, learner):
            pass

    with pytest.raises(UsageError, match="never steps the environment"):
        check(trace(Idle(), CARTPOLE))


def test_a_stage_that_was_not_marked():
    @dataclass(frozen=True)
    class Unmarked(Reinforce):
        def explore(self, params, obs, key):
            return jax.vmap(jax.random.categorical)(key, obs @ params["w"]).astype(jnp.int32), {}

        def loop(self, env, learner):
            for _ in env.steps(self.horizon):
                action, extra = self.explore(learner.params, env.obs)
                env.step(action, extra)

    assert "put @act or @learn above it" in refused(Unmarked(), "self.explore(learner.params")


def test_no_minibatches():
    @dataclass(frozen=True)
    class None_(Reinforce):
        def loop(self, env, learner):
            rollout = env.unroll(self.explore, learner.params, self.horizon)
            for batch in learner.shuffled(self.advantages(rollout), 1, 0):
                learner.step(self.loss, batch)

    with pytest.raises(UsageError, match="minibatches is 0"):
        trace(None_(), CARTPOLE)


@pytest.mark.parametrize(
    ("action", "what"),
    [
        (lambda obs: jnp.zeros(obs.shape[0]), "the action is float32 of shape (8,)"),
        (lambda obs: obs[:, :2], "the action is float32 of shape (8, 2)"),
        (lambda obs: jnp.int32(1), "the action is int32 of shape ()"),
        (lambda obs: jnp.zeros((obs.shape[0], 1), jnp.int32), "the action is int32 of shape (8, 1)"),
        (lambda obs: (jnp.zeros(obs.shape[0], jnp.int32), ()), "the action is a tuple of 2 parts"),
    ],
)
def test_an_action_that_is_none_of_the_space(action, what):
    @dataclass(frozen=True)
    class Inept(Reinforce):
        @act
        def explore(self, params, obs):
            del params
            return action(obs), {}

    message = refused(Inept(), "env.unroll")
    assert f"{what}, but Discrete(2) wants int32 of shape (8,)" in message


@pytest.mark.parametrize("made", [lambda action: action, lambda action: {"action": action}])
def test_a_stage_without_extras_is_no_policy_for_unroll(made):
    @dataclass(frozen=True)
    class Bare(Reinforce):
        @act
        def explore(self, params, obs):
            return made((obs @ params["w"]).argmax(-1).astype(jnp.int32))

    message = refused(Bare(), "env.unroll")
    assert "needs a stage that returns (action, extra), but explore returns no pair" in message
    with pytest.raises(UsageError, match="explore returns no pair"):
        sherd.debug(Bare(), "CartPole-v1", envs=2, iterations=1)


def test_a_wrong_action_is_refused_by_an_eager_run_too():
    @dataclass(frozen=True)
    class Inept(Reinforce):
        def loop(self, env, learner):
            env.step(jnp.float32(1))

    with pytest.raises(
        UsageError, match=r"is float32 of shape \(\), but Discrete\(2\) wants int32 of shape \(2,\)"
    ):
        sherd.debug(Inept(), "CartPole-v1", envs=2, iterations=1)


NESTED = spaces.Dict({"go": spaces.Discrete(2), "arm": spaces.Tuple([spaces.Box(-1, 1, (3,))])})


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (spaces.Discrete(2), jnp.zeros(4, jnp.uint8)),
        (spaces.Discrete(2), jnp.zeros(4, bool)),
        (spaces.Discrete(2, start=3), jnp.zeros(4, jnp.int32)),
        (spaces.MultiDiscrete([2, 3]), jnp.zeros((4, 2), jnp.int8)),
        (spaces.MultiBinary(3), jnp.zeros((4, 3), jnp.int32)),
        (spaces.Box(-1, 1, (3,), np.float64), jnp.zeros((4, 3), jnp.bfloat16)),
        (spaces.Box(-1, 1, (3,)), jnp.zeros((4, 3), jnp.int32)),
        (spaces.Box(-1, 1, ()), jnp.zeros(4)),
        (spaces.Box(0, 9, (3,), np.uint8), jnp.zeros((4, 3), jnp.int32)),
        (NESTED, {"go": jnp.zeros(4, jnp.int32), "arm": [jnp.zeros((4, 3))], "note": ()}),
    ],
)
def test_actions_that_mean_the_same_in_another_dtype_are_taken(space, action):
    require_action(space, action, 4)


@pytest.mark.parametrize(
    ("action", "what"),
    [
        ({"go": jnp.zeros(4, jnp.int32)}, "the action is a dict with the keys go"),
        (jnp.zeros(4), "the action is one array"),
        ({"go": jnp.zeros(4, jnp.int32), "arm": ()}, "the action's leaf 'arm' is a tuple of 0 parts"),
        ({"go": jnp.zeros(4, jnp.int32), "arm": (jnp.zeros(4),)}, "the action's leaf 'arm/0' is float32 of"),
    ],
)
def test_the_leaf_of_a_wrong_action_is_named(action, what):
    with pytest.raises(UsageError, match=what) as caught:
        require_action(NESTED, action, 4)
    assert "fix:" in str(caught.value)
