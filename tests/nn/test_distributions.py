"""Distributions against distrax and NumPy, their samples against their own probabilities."""

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces

from sherd.errors import UsageError
from sherd.nn.distributions import clip_action, distribution, log_std_size, parameter_size
from sherd.spaces import Space, carried_dtype, leaf_spaces

NESTED = gym_spaces.Dict(
    {
        "move": gym_spaces.Tuple([gym_spaces.Discrete(3, start=-1), gym_spaces.Box(-1, 1, (2,))]),
        "buttons": gym_spaces.MultiBinary(4),
        "gears": gym_spaces.MultiDiscrete([2, 5]),
    }
)
SPACES: list[Space] = [
    gym_spaces.Discrete(18, start=3),
    gym_spaces.MultiDiscrete([2, 3, 4]),
    gym_spaces.MultiDiscrete([[3, 3], [3, 3]]),
    gym_spaces.MultiBinary([2, 3]),
    gym_spaces.Box(-1, 1, (2, 2)),
    NESTED,
]


def build(space: Space, lead: tuple[int, ...], seed: int = 0, mask=None):
    rng = np.random.default_rng(seed)
    outputs = jnp.asarray(rng.normal(size=(*lead, parameter_size(space))), jnp.float32)
    log_std = jnp.asarray(rng.normal(size=log_std_size(space)) * 0.3, jnp.float32)
    return outputs, log_std, distribution(space, (outputs, log_std), mask)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_samples_belong_to_the_space_and_methods_batch_over_any_axes(space: Space) -> None:
    keys = jax.random.split(jax.random.key(0), (5, 3))
    outputs, log_std, whole = build(space, (5, 3))
    action, logs, entropy = evaluate(whole, keys)
    assert logs.shape == entropy.shape == (5, 3)
    for (_, leaf), array in zip(leaf_spaces(space), leaves_in_order(space, action), strict=True):
        assert array.shape == (5, 3, *leaf.shape)
        assert array.dtype == carried_dtype(leaf)
        if not isinstance(leaf, gym_spaces.Box):
            for row in np.asarray(array).reshape(15, *leaf.shape):
                assert leaf.contains(row.astype(leaf.dtype) if leaf.shape else leaf.dtype.type(row))

    @jax.jit
    def one_row(outputs, action):
        row = distribution(space, (outputs, log_std))
        return row.log_prob(action), row.entropy(), row.log_prob(row.mode())

    row_logs, row_entropy, best = one_row(outputs[2], jax.tree.map(lambda x: x[2], action))
    np.testing.assert_allclose(row_entropy, entropy[2], rtol=1e-5)
    np.testing.assert_allclose(row_logs, logs[2], rtol=1e-5, atol=1e-6)
    assert (best >= row_logs - 1e-6).all()


def assert_same_measures(found, action, reference, reference_action) -> None:
    expected = jax.jit(lambda action: (reference.log_prob(action), reference.entropy()))(reference_action)
    for a, b in zip(measure(found, action), expected):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@jax.jit
def measure(found, action):
    return found.log_prob(action), found.entropy()


@jax.jit
def evaluate(found, keys):
    action = found.sample(keys)
    return action, found.log_prob(action), found.entropy()


def leaves_in_order(space: Space, tree):
    if isinstance(space, gym_spaces.Dict):
        return [x for key, child in space.spaces.items() for x in leaves_in_order(child, tree[key])]
    if isinstance(space, gym_spaces.Tuple):
        return [x for i, child in enumerate(space.spaces) for x in leaves_in_order(child, tree[i])]
    return [tree]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_rows_sample_does_not_depend_on_the_other_rows(space: Space) -> None:
    keys = jax.random.split(jax.random.key(7), 6)
    outputs, log_std, whole = build(space, (6,))
    halves = [
        evaluate(distribution(space, (outputs[rows], log_std)), keys[rows])[0]
        for rows in (slice(3), slice(3, 6))
    ]
    joined = jax.tree.map(lambda *x: np.concatenate(x), *halves)
    jax.tree.map(np.testing.assert_array_equal, evaluate(whole, keys)[0], joined)


def test_discrete_equals_distrax() -> None:
    outputs, _, found = build(gym_spaces.Discrete(4, start=2), (6,))
    expected = distrax.Categorical(logits=outputs)
    actions = jnp.array([0, 1, 2, 3, 0, 1])
    assert_same_measures(found, actions + 2, expected, actions)
    np.testing.assert_array_equal(found.mode(), expected.mode() + 2)


def test_multidiscrete_is_a_sum_over_its_choices() -> None:
    outputs, _, found = build(gym_spaces.MultiDiscrete([2, 3, 4]), (5,))
    actions = jnp.array([[0, 0, 0], [1, 2, 3], [0, 1, 2], [1, 0, 3], [0, 2, 1]])

    @jax.jit
    def reference(outputs):
        parts = [distrax.Categorical(logits=x) for x in jnp.split(outputs, [2, 5], axis=-1)]
        logs = sum(part.log_prob(actions[:, i]) for i, part in enumerate(parts))
        return logs, sum(part.entropy() for part in parts), jnp.stack([part.mode() for part in parts], 1)

    logs, entropy, mode = reference(outputs)
    np.testing.assert_allclose(found.log_prob(actions), logs, rtol=1e-5)
    np.testing.assert_allclose(found.entropy(), entropy, rtol=1e-5)
    np.testing.assert_array_equal(found.mode(), mode)


def test_multibinary_equals_distrax() -> None:
    outputs, _, found = build(gym_spaces.MultiBinary(3), (5,))
    expected = distrax.Independent(distrax.Bernoulli(logits=outputs), 1)
    actions = jnp.asarray(np.random.default_rng(0).integers(0, 2, (5, 3)), jnp.int8)
    assert_same_measures(found, actions, expected, actions)


def test_box_equals_distrax_also_with_deviations_per_row() -> None:
    outputs, log_std, found = build(gym_spaces.Box(-1, 1, (3,)), (5,))
    actions = outputs + 0.7
    expected = distrax.MultivariateNormalDiag(outputs, jnp.broadcast_to(jnp.exp(log_std), (5, 3)))
    assert_same_measures(found, actions, expected, actions)
    spread = outputs * 0.1
    found = distribution(gym_spaces.Box(-1, 1, (3,)), (outputs, spread))
    expected = distrax.MultivariateNormalDiag(outputs, jnp.exp(spread))
    assert_same_measures(found, actions, expected, actions)


def test_nested_spaces_are_products_of_their_leaves() -> None:
    outputs, log_std, found = build(NESTED, (4,))
    action, logs, entropy = evaluate(found, jax.random.split(jax.random.key(0), 4))
    # Gymnasium sorts the names: buttons 4, gears 2 + 5, move 3 + 2.
    parts = [
        (gym_spaces.MultiBinary(4), outputs[:, :4], action["buttons"]),
        (gym_spaces.MultiDiscrete([2, 5]), outputs[:, 4:11], action["gears"]),
        (gym_spaces.Discrete(3, start=-1), outputs[:, 11:14], action["move"][0]),
        (gym_spaces.Box(-1, 1, (2,)), outputs[:, 14:], action["move"][1]),
    ]
    singles = [measure(distribution(space, (x, log_std)), taken) for space, x, taken in parts]
    np.testing.assert_allclose(logs, sum(np.asarray(one[0]) for one in singles), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(entropy, sum(np.asarray(one[1]) for one in singles), rtol=1e-5)


def test_parts_of_a_product_draw_independently() -> None:
    space = gym_spaces.Tuple([gym_spaces.Discrete(2), gym_spaces.Discrete(2)])
    first, second = distribution(space, jnp.zeros((4000, 4))).sample(
        jax.random.split(jax.random.key(0), 4000)
    )
    assert abs(float(jnp.mean(first == second)) - 0.5) < 0.04


@pytest.mark.parametrize("masked", [False, True])
def test_sampling_frequencies_are_the_probabilities(masked: bool) -> None:
    rows = 20000
    logits = jnp.array([0.3, -1.0, 2.0, 0.0, 0.7])
    mask = jnp.array([1, 1, 0, 1, 1], jnp.int8) if masked else None
    found = distribution(gym_spaces.Discrete(5), jnp.broadcast_to(logits, (rows, 5)), mask)
    counts = np.bincount(found.sample(jax.random.split(jax.random.key(3), rows)), minlength=5)
    weights = np.exp(logits) * (np.ones(5) if mask is None else np.asarray(mask))
    probabilities = weights / weights.sum()
    deviation = np.sqrt(probabilities * (1 - probabilities) / rows)
    assert (np.abs(counts / rows - probabilities) <= 4 * deviation).all()


def test_normal_and_binary_samples_have_the_right_moments() -> None:
    keys = jax.random.split(jax.random.key(0), 20000)
    means = jnp.broadcast_to(jnp.array([1.0, -2.0]), (20000, 2))
    sample = distribution(gym_spaces.Box(-1, 1, (2,)), (means, jnp.log(jnp.array([0.5, 2.0])))).sample(keys)
    np.testing.assert_allclose(sample.mean(0), [1, -2], atol=0.06)
    np.testing.assert_allclose(sample.std(0), [0.5, 2], rtol=0.03)
    sample = distribution(gym_spaces.MultiBinary(2), means).sample(keys)
    np.testing.assert_allclose(sample.mean(0), 1 / (1 + np.exp([-1.0, 2.0])), atol=0.015)


@pytest.mark.parametrize("wide", [3, 100])
def test_illegal_actions_are_never_sampled_and_gradients_are_finite(wide: int) -> None:
    space, rows = gym_spaces.Discrete(wide), 3000
    rng = np.random.default_rng(0)
    mask = rng.random((rows, wide)) < 0.3
    mask[np.arange(rows), rng.integers(0, wide, rows)] = True
    outputs = jnp.asarray(rng.normal(size=(rows, wide)) * 5, jnp.float32)
    found = distribution(space, outputs, mask)
    actions = found.sample(jax.random.split(jax.random.key(0), rows))
    assert mask[np.arange(rows), actions].all()
    assert mask[np.arange(rows), found.mode()].all()

    reference = distrax.Categorical(logits=jnp.where(mask, outputs, -jnp.inf))
    assert_same_measures(found, actions, reference, actions)

    def objective(x):
        policy = distribution(space, x, mask)
        return jnp.sum(policy.log_prob(actions) + policy.entropy())

    gradient = jax.jit(jax.grad(objective))(outputs)
    assert jnp.isfinite(gradient).all()
    assert (np.asarray(gradient)[~mask] == 0).all()
    assert np.abs(gradient).max() > 0


def test_multidiscrete_masks_come_in_a_row_or_as_a_tuple() -> None:
    space = gym_spaces.MultiDiscrete([2, 3])
    flat = jnp.array([[0, 1, 1, 0, 1]])
    for mask in (flat, (flat[:, :2], flat[:, 2:])):
        found = distribution(space, jnp.zeros((1, 5)), mask)
        np.testing.assert_allclose(found.entropy(), [np.log(2)], rtol=1e-6)
        assert np.exp(found.log_prob(jnp.array([[1, 2]])))[0] == pytest.approx(0.5)
        assert np.exp(found.log_prob(jnp.array([[1, 1]])))[0] == 0


def test_nested_masks_mirror_the_actions() -> None:
    space = gym_spaces.Dict({"a": gym_spaces.Discrete(2), "b": gym_spaces.Box(-1, 1, (1,))})
    parameters = (jnp.zeros((1, 3)), jnp.zeros(1))
    found = distribution(space, parameters, {"a": jnp.array([[0, 1]])})
    assert found.sample(jax.random.split(jax.random.key(0), 1))["a"].tolist() == [1]
    with pytest.raises(UsageError, match="same layout"):
        distribution(space, parameters, jnp.array([[0, 1]]))


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(UsageError, match="log standard deviations"):
        distribution(gym_spaces.Box(-1, 1, (1,)), jnp.zeros((1, 1)))
    with pytest.raises(UsageError, match=r"2 entries.*3 options"):
        distribution(gym_spaces.Discrete(3), jnp.zeros((1, 3)), jnp.ones((1, 2)))
    with pytest.raises(UsageError, match="no discrete options"):
        distribution(gym_spaces.MultiBinary(3), jnp.zeros((1, 3)), jnp.ones((1, 3)))


def test_clip_touches_only_boxes() -> None:
    space = gym_spaces.Dict(
        {
            "half": gym_spaces.Box(np.array([-1, -np.inf], np.float32), np.array([np.inf, 2], np.float32)),
            "steps": gym_spaces.Box(0, 3, (2,), np.int32),
            "pick": gym_spaces.Discrete(3),
        }
    )
    action = {"half": jnp.array([9.0, 9.0]), "steps": jnp.array([1.6, 8.0]), "pick": jnp.array(2)}
    found = clip_action(space, action)
    np.testing.assert_array_equal(found["half"], [9.0, 2.0])
    np.testing.assert_array_equal(found["steps"], [2, 3])
    assert found["steps"].dtype == jnp.int32
    assert found["pick"] == 2
