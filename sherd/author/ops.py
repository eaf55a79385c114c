"""The pure functions behind the `learner` handle: gradients, updates, minibatches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from sherd.author import reduce
from sherd.author.types import LearnerState, Tree
from sherd.author.vector import VectorOptimiser, vector
from sherd.errors import UsageError, author_source

WEIGHT = "weight"  # the metric that says how much a report counts


def initial_learner(params: Tree, optimiser: Any) -> LearnerState:
    """The learner's state before the first update."""
    never, none = jnp.int32(-1), jnp.int32(0)
    if not isinstance(optimiser, dict):
        return LearnerState(params, optimiser.init(params), none, never, never)
    for part in optimiser:
        if not isinstance(params, dict) or part not in params:
            has = f"has {', '.join(params)}" if isinstance(params, dict) else "is not a dict"
            raise UsageError(
                f"optimiser() names the part {part!r}, but what init() returns {has}\n"
                "  fix: return a dict of parameters with one entry for every optimiser"
            )
    states = {part: one.init(params[part]) for part, one in optimiser.items()}
    return LearnerState(params, states, dict.fromkeys(optimiser, none), never, never)


def gradient(loss: Callable[..., Any], part: str | None) -> Callable[..., tuple[Tree, Tree, Tree]]:
    """A function (params, ...) -> (gradients, metrics, rows); all but rows are averaged over all replicas.

    The gradients are those of one part of the parameters, if it is named.
    """

    def outcome(changed: Tree, params: Tree, *args: Any) -> tuple[Any, tuple[dict[str, Any], Tree]]:
        result = loss(changed if part is None else {**params, part: changed}, *args)
        value, metrics, rows = (*result, (), ())[:3] if isinstance(result, tuple) else (result, {}, ())
        if jnp.shape(value) != ():
            raise UsageError(
                f"{loss.__name__} must return a scalar, but its shape is {jnp.shape(value)}\n"
                f"  at {author_source().quoted()}\n  fix: take the mean over the minibatch"
            )
        return value, ({"loss": value, **dict(metrics)}, jax.tree.map(jnp.asarray, rows))

    def gradients(params: Tree, *args: Any) -> tuple[Tree, Tree, Tree]:
        changed = params if part is None else params[part]
        (_, (metrics, rows)), grads = jax.value_and_grad(outcome, has_aux=True)(changed, params, *args)
        return *reduce.gradients((grads, metrics)), rows

    return gradients


@dataclass(frozen=True)
class Conditional:
    """A function (when, ...) that computes only where `when` is true, and gives zeros elsewhere."""

    function: Callable[..., Tree]

    def __call__(self, when: Any, *args: Any) -> Tree:
        if when is True:
            return self._something(*args)
        shapes = jax.eval_shape(self.function, *args)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        if when is False:
            return nothing
        return jax.lax.cond(when, lambda: self._something(*args), lambda: nothing)

    def _something(self, *args: Any) -> Tree:
        return jax.tree.map(jnp.asarray, self.function(*args))


def updating(optimiser: Any, part: str | None, stop_when: Callable[[Tree], Any] | None) -> Callable[..., Any]:
    """A function that applies gradients, unless learning stopped, failed, or `when` says no.

    A value that is not finite freezes the learner for good: the last good parameters survive in it, and
    `failed` tells the run in which iteration it happened.
    """

    def update(
        learner: LearnerState, grads: Tree, metrics: Tree, scale: Any, when: Any, iteration: Any
    ) -> Any:
        norm = optax.tree.norm(vector(grads) if isinstance(optimiser, VectorOptimiser) else grads)
        finite = jnp.isfinite(norm) & jnp.isfinite(metrics["loss"])
        fails = (learner.failed < 0) & ~finite & when
        failed = jnp.where(fails, iteration, learner.failed)
        halt = learner.stopped == iteration
        if stop_when is not None:
            halt = halt | (stop_when(metrics) & when)
        stopped = jnp.where(halt, iteration, learner.stopped)
        go = jnp.asarray(when) & (failed < 0) & ~halt
        old = _changing(learner, part)
        steps, optimiser_state = optimiser.update(grads, old[1], old[0])
        steps = jax.tree.map(lambda step: step * scale, steps)
        new = (optax.apply_updates(old[0], steps), optimiser_state, old[2] + 1)
        kept = select(go, new, old)
        about = {"loss": metrics["loss"], "grad_norm": norm, "update_scale": jnp.float32(scale)}
        named = {f"{part}_{name}" if part else name: value for name, value in about.items()}
        own = {name: value for name, value in metrics.items() if name != "loss"}
        # The update that fails counts, so that the iteration's metrics tell which one it was.
        report = {**named, **own, WEIGHT: jnp.float32(go | fails)}
        params, optimiser_state, updates = _changed(learner, part, kept)
        return LearnerState(params, optimiser_state, updates, stopped, failed), report

    return update


def _changing(learner: LearnerState, part: str | None) -> tuple[Tree, Tree, Any]:
    """Parameters, optimiser and number of updates: all of them, or those of a part."""
    fields = learner.params, learner.optimiser, learner.updates
    params, optimiser, updates = fields if part is None else (field[part] for field in fields)
    return params, optimiser, updates


def _changed(learner: LearnerState, part: str | None, new: tuple[Any, ...]) -> tuple[Any, ...]:
    if part is None:
        return new
    fields = learner.params, learner.optimiser, learner.updates
    return tuple({**field, part: one} for field, one in zip(fields, new))


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
