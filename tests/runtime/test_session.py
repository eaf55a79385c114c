"""What a run says of learning that failed."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sherd import Algorithm, RunError, act, train
from sherd.algorithms.dqn import DQN


@dataclass(frozen=True)
class TwoLosses(Algorithm):
    """A critic and an actor, updated in this order; the loss of one becomes NaN in the third iteration."""

    poisoned: str = ""

    def init(self, key):
        del key
        return {name: jnp.full((4, 2), 0.1) for name in ("critic", "actor")}

    def optimiser(self):
        return {"critic": optax.sgd(0.01), "actor": optax.sgd(0.01)}

    @act
    def explore(self, params, obs, key):
        return jax.vmap(jax.random.categorical)(key, obs @ params["actor"])

    def critic_loss(self, params, rollout, iteration):
        return self._loss("critic", params, rollout, iteration)

    def actor_loss(self, params, rollout, iteration):
        return self._loss("actor", params, rollout, iteration)

    def _loss(self, part, params, rollout, iteration):
        bad = (iteration == 2) & (part == self.poisoned)
        return jnp.square(rollout.obs @ params[part]).mean() * jnp.where(bad, jnp.nan, 1.0)

    def loop(self, env, learner):
        for _ in env.steps(4):
            env.step(self.explore(learner.params, env.obs))
        learner.step(self.critic_loss, env.rollout, learner.iteration, part="critic")
        learner.step(self.actor_loss, env.rollout, learner.iteration, part="actor")


SMALL = {"steps": 64, "envs": 2, "eval_episodes": 0}


@pytest.mark.parametrize("part", ["critic", "actor"])
@pytest.mark.parametrize("env", ["CartPole-v1", "graph/CartPole-v1"])
def test_a_loss_that_is_not_finite_is_reported_at_its_own_line(env, part):
    with pytest.raises(RunError, match="iteration 3: ") as caught:
        train(TwoLosses(part), env, **SMALL)
    assert f"learner.step(self.{part}_loss" in str(caught.value)


def test_parameters_are_said_to_be_kept_only_where_they_are(tmp_path):
    with pytest.raises(RunError) as caught:
        train(TwoLosses("actor"), "CartPole-v1", **SMALL)
    assert "kept" not in str(caught.value)
    with pytest.raises(RunError, match="the last good parameters are kept in"):
        train(TwoLosses("actor"), "CartPole-v1", run_dir=tmp_path / "run", **SMALL)


def test_a_run_that_never_updates_says_so_and_why():
    run = train(DQN(warm_up=1000, capacity=1000), "CartPole-v1", **SMALL)
    assert run.summary["updates"] == 0
    assert "replay is ready from 1,000 steps on (dqn.py:" in run.summary["warning"]
    assert np.isnan(run.metrics["loss"]).all()
    learnt = train(DQN(warm_up=32, capacity=1000, updates=1), "CartPole-v1", **SMALL)
    assert learnt.summary["updates"] == np.isfinite(learnt.metrics["loss"]).sum() > 0
    assert "warning" not in learnt.summary


def test_metrics_have_the_order_of_the_loop_in_every_environment():
    orders = [list(train(TwoLosses(), env, **SMALL).metrics) for env in ("CartPole-v1", "graph/CartPole-v1")]
    assert orders[0] == orders[1]
    assert orders[0].index("critic_loss") < orders[0].index("actor_loss")
