"""Keys depend on seed, node, iteration, step and global environment index, and collide for none of them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from sherd.author.keys import Frame, run_key


def data(key) -> tuple:
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_every_moment_has_its_own_key():
    keys = set()
    moments = list(itertools.product(range(3), ["explore", "step", "explore.1"], range(6), range(5)))
    for seed, node, iteration, turn in moments:
        frame = Frame(run_key(seed), iteration, 10, jnp.arange(7)).within(turn)
        keys.update(map(tuple, np.asarray(jax.random.key_data(frame.env_keys(node))).tolist()))
        keys.add(data(frame.key(node)))
    assert len(keys) == len(moments) * 8


def test_many_environments_have_their_own_keys():
    frame = Frame(run_key(0), 5, 10, jnp.arange(200_000))
    rows = np.asarray(jax.random.key_data(frame.env_keys("explore")))
    assert len(np.unique(rows, axis=0)) == 200_000


def test_keys_go_by_global_index():
    whole = Frame(run_key(1), 2, 10, jnp.arange(6)).env_keys("explore")
    part = Frame(run_key(1), 2, 10, jnp.arange(3, 6)).env_keys("explore")
    assert (whole[3:] == part).all()


def test_draws_look_uniform_and_independent_across_environments_and_time():
    def draw(step):
        keys = Frame(run_key(3), step, 10, jnp.arange(64)).env_keys("explore")
        return jax.vmap(jax.random.uniform)(keys)

    drawn = np.asarray(jax.vmap(draw)(jnp.arange(2000)))
    assert abs(drawn.mean() - 0.5) < 0.003
    assert abs(drawn.var() - 1 / 12) < 0.001
    across = np.corrcoef(drawn.T) - np.eye(64)
    assert np.abs(across).max() < 0.12
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.07
