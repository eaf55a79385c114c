"""Rejax's PPO on gymnax's CartPole, one compiled call for each iteration: run_rejax.py graph-cartpole

Rejax compiles a whole training run into one program; its iteration is the same function, and at a second
for each of them the calls cost nothing.
"""

from __future__ import annotations

import common
import workloads

with common.imports("rejax", __doc__):
    import jax
    from rejax import PPO


def main() -> None:
    """Measure the workload."""
    task = common.Task("rejax", "rejax", __doc__)
    work = task.workload
    algorithm = PPO.create(
        env="CartPole-v1",
        num_envs=work.envs,
        num_steps=work.horizon,
        num_epochs=work.epochs,
        num_minibatches=work.minibatches,
        learning_rate=workloads.LEARNING_RATE,
        gamma=workloads.DISCOUNT,
        gae_lambda=workloads.GAE_LAMBDA,
        clip_eps=workloads.CLIP,
        ent_coef=workloads.ENTROPY_COST,
        vf_coef=workloads.VALUE_COST,
        max_grad_norm=workloads.MAX_GRAD_NORM,
        normalize_observations=False,
        normalize_rewards=False,
        agent_kwargs={"hidden_layer_sizes": work.hidden, "activation": "tanh"},
    )
    iterate = jax.jit(lambda state: algorithm.train_iteration(state), donate_argnums=0)
    state, steps = jax.jit(algorithm.init_state)(jax.random.key(1)), 0
    while True:
        state = jax.block_until_ready(iterate(state))
        steps += work.steps
        if task.meter.mark(steps):
            break
    task.report()


if __name__ == "__main__":
    main()
