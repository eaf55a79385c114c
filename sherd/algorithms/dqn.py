"""Deep Q-learning (Mnih et al., 2015); its flags together are Rainbow, and with a GRU it is R2D2.

`docs/algorithms/dqn.md` explains each detail and where it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from sherd.author import Algorithm, Transition, act, as_vector, learn, per_env, shared
from sherd.nn.discrete import action_of, index_of, require_discrete
from sherd.nn.distributions import NEVER
from sherd.nn.lookahead import Lookahead, Networks, look_ahead, look_along, of_action
from sherd.nn.q_network import QNetwork, q_network
from sherd.nn.targets import polyak
from sherd.nn.transforms import rescale, unscale
from sherd.nn.value_distributions import cross_entropy, project


@dataclass(frozen=True)
class DQN(Algorithm):
    """Deep Q-learning, for Discrete actions; its flags together are Rainbow, or with a GRU R2D2."""

    horizon: int = 4
    """Steps that each environment makes per iteration."""
    updates: int = 8
    """Updates per iteration; each step is replayed updates x batch / (horizon x environments) times."""
    batch: int = 128
    """Windows drawn for an update; a multiple of the number of environments."""
    capacity: int = 100_000
    """Steps that replay remembers, over all environments."""
    warm_up: int = 1_000
    """Steps to remember before the first update."""
    sync: int = 200
    """Updates between two movements of the target network."""
    tau: float = 1.0
    """How far it moves to the network that learns; 1: all the way."""
    learning_rate: float = 1e-3
    """Step size of Adam, at the beginning."""
    anneal: bool = True
    """Let the learning rate fall linearly to zero over the run."""
    adam_epsilon: float = 1e-5
    """Added to the deviation that Adam divides by."""
    max_grad_norm: float = 10.0
    """Gradients are scaled down to this norm."""
    discount: float = 0.99
    """How much a reward one step later is worth."""
    epsilon_start: float = 1.0
    """Share of random actions at the beginning; with noisy layers there are none."""
    epsilon_end: float = 0.05
    """Share of random actions once exploration has fallen."""
    explore_until: float = 0.2
    """Share of the run over which random actions become fewer."""
    double: bool = True
    """Let the network that learns choose the action that the target network values."""
    dueling: bool = False
    """Learn the value of a state apart from the advantages of actions."""
    n_step: int = 5
    """Rewards that a return adds up before a value stands for the rest."""
    prioritised: bool = False
    """Draw windows in proportion to their error."""
    alpha: float = 0.5
    """How much the error counts in drawing: its power."""
    beta: float = 0.4
    """How much of that preference is undone by weights, at the beginning; it rises to 1."""
    noisy: bool = False
    """Explore by learnt noise in the head's layers instead of by random actions."""
    atoms: int = 1
    """Values over which each action has a distribution (C51); 1: its mean only."""
    low: float = -10.0
    """The lowest of these values."""
    high: float = 10.0
    """The highest of these values."""
    rescale: bool = False
    """Learn values on a squashed scale, for returns of very different sizes."""
    sequence: int = 16
    """For a recurrent network: steps of a drawn sequence that are learnt from."""
    burn_in: int = 8
    """For a recurrent network: steps before these that only refresh the memory."""
    stride: int = 8
    """For a recurrent network: steps between the beginnings of sequences."""
    eta: float = 0.9
    """A sequence's priority: this share of its largest error, the rest of its mean."""
    network: Any = "auto"
    """auto, mlp, cnn, gru, `module:attribute`, or any object with init(key, obs) and apply(params, obs)."""
    hidden: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers of an MLP."""
    memory_units: int = 128
    """Width of a GRU's memory."""

    @property
    def model(self) -> QNetwork:
        head = (self.dueling, self.noisy, self.atoms, self.low, self.high)
        return q_network(self.spec, self.network, self.hidden, self.memory_units, *head)

    def init(self, key: Any) -> Any:
        return self.model.init(key)

    def optimiser(self) -> Any:
        clipping = optax.clip_by_global_norm(self.max_grad_norm)
        return as_vector(optax.chain(clipping, optax.adam(self.learning_rate, eps=self.adam_epsilon)))

    def state(self, params: Any) -> dict[str, Any]:
        memory = jax.tree.map(lambda leaf: leaf[0], self.model.initial_memory(1))
        return {"target": shared(params), "memory": per_env(memory)}

    @property
    def window(self) -> tuple[int, int]:
        """How many steps a draw has, and how many lie between the beginnings of two."""
        whole = (self.burn_in + self.sequence, self.stride)
        return whole if self.model.recurrent else (self.n_step, 1)

    @act
    def explore(self, params: Any, epsilon: Any, obs: Any, first: Any, memory: Any, key: Any) -> Any:
        noise = key if self.noisy else None
        outputs, after = self.model.step(params, obs, memory, first, noise)
        chosen = jax.vmap(epsilon_greedy, (0, 0, None))(key, self.model.q(outputs, obs), epsilon)
        return action_of(require_discrete(self.spec), chosen), memory, after

    @act
    def exploit(self, params: Any, obs: Any, first: Any, memory: Any) -> Any:
        outputs, memory = self.model.step(params, obs, memory, first)
        return action_of(require_discrete(self.spec), self.model.q(outputs, obs).argmax(-1)), memory

    @learn
    def randomness(self, progress: Any) -> Any:
        share = jnp.minimum(progress / max(self.explore_until, 1e-9), 1.0)
        epsilon = self.epsilon_start + (self.epsilon_end - self.epsilon_start) * share
        return jnp.zeros_like(epsilon) if self.noisy else epsilon

    @learn
    def correction(self, progress: Any) -> Any:
        return self.beta + (1 - self.beta) * progress

    @learn
    def rate(self, progress: Any) -> Any:
        return 1 - progress if self.anneal else jnp.ones_like(progress)

    @learn
    def follow(self, target: Any, params: Any) -> Any:
        return polyak(target, params, self.tau) if self.tau < 1 else params

    def loss(self, params: Any, target: Any, sample: Any, key: Any) -> Any:
        noise = jax.random.split(key, 3) if self.noisy else (None, None, None)
        ahead = self.look(Networks(params, target, noise), self.steps_of(sample))
        chosen = of_action(ahead.now, index_of(require_discrete(self.spec), ahead.action))
        error = self.error(chosen, ahead)
        loss = error if self.atoms > 1 else optax.huber_loss(error)
        size = jnp.abs(error)
        priority = (self.eta * size.max(0) + (1 - self.eta) * size.mean(0)) ** self.alpha
        metrics = {"q": self.model.q(chosen).mean(), "error": size.mean()}
        return (sample.weight * loss).mean(), metrics, priority

    def steps_of(self, sample: Any) -> Transition:
        """A draw with its axis of time, [time, draw, env, ...], also where there is only one."""
        alone = self.window[0] == 1
        return jax.tree.map(lambda leaf: leaf[None], sample.data) if alone else sample.data

    def look(self, networks: Networks, window: Transition) -> Lookahead:
        if self.model.recurrent:
            return look_along(self.model, networks, window, self.discount, self.n_step, self.burn_in)
        return look_ahead(self.model, networks, window, self.discount)

    def error(self, chosen: Any, ahead: Lookahead) -> Any:
        """How far values [time, draw, env] are from their targets; of distributions, the cross-entropy."""
        judge = ahead.online if self.double else ahead.target
        best = self.model.q(judge, ahead.obs).argmax(-1)
        future = of_action(ahead.target, best)
        if self.atoms == 1:
            return chosen - self.returns(ahead.total, ahead.factor, future)
        support = self.model.support
        values = self.returns(ahead.total[..., None], ahead.factor[..., None], support)
        return cross_entropy(chosen, project(values, jax.nn.softmax(future), support))

    def returns(self, total: Any, factor: Any, value: Any) -> Any:
        return rescale(total + factor * unscale(value)) if self.rescale else total + factor * value

    def loop(self, env: Any, learner: Any, state: Any, replay: Any) -> None:
        epsilon, rate = self.randomness(learner.progress), self.rate(learner.progress)
        for _ in env.steps(self.horizon):
            action, memory, state.memory = self.explore(
                learner.params, epsilon, env.obs, env.first, state.memory
            )
            env.step(action, memory)
        replay.add(env.rollout, self.capacity, *self.window, self.prioritised)
        ready = replay.ready(self.warm_up)
        beta = self.correction(learner.progress) if self.prioritised else self.beta
        for sample in replay.sample(self.batch, self.updates, beta):
            update = learner.step(self.loss, state.target, sample, scale=rate, when=ready)
            if self.prioritised:
                replay.reprioritise(sample, update.rows, when=ready)
            followed = self.follow(state.target, learner.params)
            state.target = learner.every(self.sync, followed, state.target)

    def play(self, env: Any, learner: Any, state: Any) -> None:
        action, state.memory = self.exploit(learner.params, env.obs, env.first, state.memory)
        env.step(action)


def epsilon_greedy(key: Any, q: Any, epsilon: Any) -> Any:
    """The index of the best of values [actions], or with chance `epsilon` of any legal one.

    >>> int(epsilon_greedy(jax.random.key(0), jnp.array([1.0, 3.0, 2.0]), 0.0))
    1
    """
    toss, pick = jax.random.split(key)
    random = jax.random.categorical(pick, jnp.where(q > NEVER, 0.0, NEVER))
    return jnp.where(jax.random.uniform(toss) < epsilon, random, q.argmax(-1))
