"""The pure functions behind the `learner` handle: gradients, updates, minibatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from sherd.author import reduce
from sherd.author.types import LearnerState, Tree
from sherd.errors import UsageError, author_source

WEIGHT = "weight"  # the metric that says how much a report counts


def initial_learner(params: Tree, optimiser: Any) -> LearnerState:
    """The learner's state before the first update."""
    never = jnp.int32(-1)
    return LearnerState(params, optimiser.init(params), jnp.int32(0), never, never)


def gradient(loss: Callable[..., Any]) -> Callable[..., tuple[Tree, Tree]]:
    """A function (params, ...) -> (gradients, metrics), averaged over all replicas."""

    def loss_and_metrics(params: Tree, *args: Any) -> tuple[Any, dict[str, Any]]:
        result = loss(params, *args)
        value, metrics = result if isinstance(result, tuple) else (result, {})
        if jnp.shape(value) != ():
            raise UsageError(
                f"{loss.__name__} must return a scalar, but its shape is {jnp.shape(value)}\n"
                f"  at {author_source().quoted()}\n  fix: take the mean over the minibatch"
            )
        return value, {"loss": value, **metrics}

    def gradients(params: Tree, *args: Any) -> tuple[Tree, Tree]:
        (_, metrics), grads = jax.value_and_grad(loss_and_metrics, has_aux=True)(params, *args)
        averaged: tuple[Tree, Tree] = reduce.gradients((grads, metrics))
        return averaged

    gradients.__name__ = loss.__name__
    return gradients


def updating(optimiser: Any, stop_when: Callable[[Tree], Any] | None) -> Callable[..., Any]:
    """A function that applies gradients, unless learning stopped, failed, or `when` says no.

    A value that is not finite freezes the learner for good: the last good parameters survive in it, and
    `failed` tells the run in which iteration it happened.
    """

    def update(
        learner: LearnerState, grads: Tree, metrics: Tree, scale: Any, when: Any, iteration: Any
    ) -> Any:
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(norm) & jnp.isfinite(metrics["loss"])
        failed = jnp.where((learner.failed < 0) & ~finite & when, iteration, learner.failed)
        halt = learner.stopped == iteration
        if stop_when is not None:
            halt = halt | (stop_when(metrics) & when)
        stopped = jnp.where(halt, iteration, learner.stopped)
        go = jnp.asarray(when) & (failed < 0) & ~halt
        steps, optimiser_state = optimiser.update(grads, learner.optimiser, learner.params)
        steps = jax.tree.map(lambda step: step * scale, steps)
        new = (optax.apply_updates(learner.params, steps), optimiser_state, learner.updates + 1)
        old = (learner.params, learner.optimiser, learner.updates)
        kept = jax.tree.map(lambda a, b: jnp.where(go, a, b), new, old)
        report = {**metrics, "grad_norm": norm, "update_scale": jnp.float32(scale), WEIGHT: jnp.float32(go)}
        params, optimiser_state, updates = kept
        return LearnerState(params, optimiser_state, updates, stopped, failed), report

    return update


def dealer(minibatches: int, sequences: bool) -> Callable[..., Tree]:
    """A function (batch, keys) -> the batch dealt into minibatches, leaves [minibatch, time, env, ...].

    Minibatches are stratified by environment, with a permutation keyed by environment, so that whoever
    holds some of the environments holds exactly their part of every minibatch.
    """

    def deal_steps(batch: Tree, keys: Any) -> Tree:
        steps = _length(batch, 0)
        _require_division(steps, minibatches, "steps of the rollout")
        bits = jax.vmap(lambda key: jax.random.bits(key, (steps,)))(keys)
        order = jnp.argsort(bits, axis=1).T

        def deal(leaf: Any) -> Any:
            index = order.reshape(order.shape + (1,) * (leaf.ndim - 2))
            taken = jnp.take_along_axis(leaf, index, axis=0)
            return taken.reshape(minibatches, steps // minibatches, *leaf.shape[1:])

        return jax.tree.map(deal, batch)

    def deal_sequences(batch: Tree, keys: Any) -> Tree:
        envs = _length(batch, 1)
        _require_division(envs, minibatches, "environments")
        # Each block of `minibatches` neighbours gives one environment to every minibatch.
        leaders = keys[::minibatches]
        order = jax.vmap(lambda key: jax.random.permutation(key, minibatches))(leaders)
        index = (order + jnp.arange(envs // minibatches)[:, None] * minibatches).T
        return jax.tree.map(lambda leaf: jnp.moveaxis(jnp.take(leaf, index, axis=1), 1, 0), batch)

    return deal_sequences if sequences else deal_steps


def _length(batch: Tree, axis: int) -> int:
    return int(jax.tree.leaves(batch)[0].shape[axis])


def _require_division(length: int, parts: int, what: str) -> None:
    if length % parts:
        fits = [n for n in range(1, length + 1) if length % n == 0]
        raise UsageError(
            f"{parts} minibatches do not divide the {length} {what}\n  at {author_source().quoted()}\n"
            f"  fix: use a number of minibatches that divides {length}: {', '.join(map(str, fits))}"
        )


def take(dealt: Tree, index: Any) -> Tree:
    """One minibatch of a dealt batch."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), dealt)


def select(condition: Any, new: Tree, old: Tree) -> Tree:
    """`new` where the condition holds, else `old`."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)
