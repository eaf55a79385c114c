"""Actor-critics: every space, recurrence against single steps, masks, gradients, users' networks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces

from sherd.errors import UsageError
from sherd.nn.actor_critic import ActorCritic, actor_critic
from sherd.nn.networks import GRUTorso, make_torso
from sherd.spaces import EnvSpec, Space, Tree, space_map

VECTOR = gym_spaces.Box(-1, 1, (3,))
MASKED = gym_spaces.Dict({"observation": VECTOR, "action_mask": gym_spaces.MultiBinary(4)})
CASES: dict[str, tuple[Space, Space]] = {
    "discrete": (VECTOR, gym_spaces.Discrete(4)),
    "multidiscrete": (VECTOR, gym_spaces.MultiDiscrete([2, 3])),
    "box": (gym_spaces.Discrete(5), gym_spaces.Box(-1, 1, (2,))),
    "image": (gym_spaces.Box(0, 255, (3, 10, 10), np.uint8), gym_spaces.Discrete(3)),
    "dict": (
        gym_spaces.Dict({"frame": gym_spaces.Box(0, 1, (6, 6, 2)), "speed": VECTOR}),
        gym_spaces.Dict({"pick": gym_spaces.Discrete(2), "turn": gym_spaces.Box(-1, 1, (1,))}),
    ),
    "masked": (MASKED, gym_spaces.Discrete(4)),
}
TIME, ENVS = 6, 3


def spec(observation: Space, action: Space) -> EnvSpec:
    return EnvSpec("toy", observation, action, "host")


def observations(space: Space, lead: tuple[int, ...], seed: int = 0) -> Tree:
    space.seed(seed)
    count = int(np.prod(lead))

    def leaf(child: Space) -> jax.Array:
        child.seed(seed)
        return jnp.asarray(np.stack([child.sample() for _ in range(count)])).reshape((*lead, *child.shape))

    return space_map(leaf, space)


def firsts(rng_seed: int = 0) -> jax.Array:
    first = np.random.default_rng(rng_seed).random((TIME, ENVS)) < 0.3
    first[0, 0] = False
    assert first[1:].any()
    assert not first.all()
    return jnp.asarray(first)


@pytest.mark.parametrize("case", CASES)
def test_step_unroll_and_value_agree(case: str) -> None:
    observation, action = CASES[case]
    model = actor_critic(spec(observation, action), hidden=(8,))
    params = jax.jit(model.init)(jax.random.key(0))
    obs, first = observations(observation, (TIME, ENVS)), firsts()

    @jax.jit
    def whole(params, obs):
        policy, value, memories = model.unroll(params, obs, (), first)
        return policy, policy.entropy(), value, memories, model.value(params, obs, ())

    @jax.jit
    def one(params, obs, keys):
        policy, value, memory = model.step(params, obs, model.initial_memory(ENVS), first[0])
        return policy, policy.sample(keys), value, memory

    policy, entropy, value, memories, again = whole(params, obs)
    assert entropy.shape == value.shape == again.shape == (TIME, ENVS)
    assert memories == ()
    np.testing.assert_allclose(value, again, rtol=1e-5, atol=1e-6)
    row, sampled, row_value, memory = one(
        params, jax.tree.map(lambda x: x[2], obs), jax.random.split(jax.random.key(1), ENVS)
    )
    assert memory == ()
    np.testing.assert_allclose(row_value, value[2], rtol=1e-4, atol=1e-5)
    assert row.log_prob(sampled).shape == (ENVS,)
    for a, b in zip(jax.tree.leaves(row), jax.tree.leaves(policy)):
        np.testing.assert_allclose(a, b[2] if b.ndim > 1 else b, rtol=1e-4, atol=1e-5)


def test_initial_policy_is_nearly_uniform_and_parameters_are_plain_dicts() -> None:
    observation, action = CASES["box"]
    model = actor_critic(spec(observation, action))
    params = model.init(jax.random.key(0))
    assert set(params) == {"torso", "value_torso", "policy", "value", "log_std"}
    np.testing.assert_array_equal(params["log_std"], np.zeros(2))
    assert np.linalg.norm(params["policy"]["kernel"], axis=0) == pytest.approx([0.01, 0.01], rel=1e-4)
    assert np.linalg.norm(params["value"]["kernel"]) == pytest.approx(1.0, rel=1e-4)
    pending = [params]
    while pending:
        tree = pending.pop()
        assert type(tree) is dict or isinstance(tree, jax.Array)
        pending += tree.values() if isinstance(tree, dict) else []
    assert not np.allclose(
        params["torso"]["params"]["MLP_0"]["Dense_0"]["kernel"],
        params["value_torso"]["params"]["MLP_0"]["Dense_0"]["kernel"],
    )


def test_torsos_are_shared_unless_mlp() -> None:
    image = spec(*CASES["image"])
    assert actor_critic(image).shared
    assert actor_critic(spec(*CASES["discrete"]), "gru").shared
    assert not actor_critic(spec(*CASES["discrete"])).shared
    assert not actor_critic(image, "mlp").shared
    assert actor_critic(image, "mlp", shared=True).shared
    assert actor_critic(image).torso.activation == "tanh"


@dataclasses.dataclass(frozen=True)
class Opaque:
    """A recurrent network that can only be stepped, as a user might bring."""

    inner: GRUTorso

    def initial_memory(self, batch: int) -> Tree:
        return {"state": self.inner.initial_memory(batch) + 0.5, "age": jnp.zeros(batch, jnp.int32)}

    def init(self, key, obs, memory):
        return self.inner.init(key, obs, memory["state"])

    def apply(self, params, obs, memory):
        features, state = self.inner.apply(params, obs, memory["state"])
        return features, {"state": state, "age": memory["age"] + 1}


@pytest.mark.parametrize("kind", ["shared", "separate", "opaque"])
def test_recurrent_unroll_equals_successive_steps(kind: str) -> None:
    env = spec(MASKED, gym_spaces.Discrete(4))
    network = Opaque(make_torso("gru", env, (8,), 5)) if kind == "opaque" else "gru"
    model = actor_critic(env, network, (8,), memory_units=5, shared=kind != "separate")
    params = jax.jit(model.init)(jax.random.key(0))
    obs, first = observations(MASKED, (TIME, ENVS)), firsts()
    # A memory that is not the initial one: the first row must be used, the others reset.
    memory = jax.tree.map(lambda x: x + jnp.ones_like(x), model.initial_memory(ENVS))
    policies, values, memories = jax.jit(model.unroll)(params, obs, memory, first)
    step, carry, reset_mattered = jax.jit(model.step), memory, False
    for t in range(TIME):
        row = jax.tree.map(lambda x, t=t: x[t], obs)
        bootstrap = model.value(params, row, carry)
        policy, value, carry = step(params, row, carry, first[t])
        np.testing.assert_allclose(policy.logits, policies.logits[t], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(value, values[t], rtol=1e-4, atol=1e-5)
        for a, b in zip(jax.tree.leaves(carry), jax.tree.leaves(memories), strict=True):
            np.testing.assert_allclose(a, b[t], rtol=1e-4, atol=1e-5)
        kept = ~np.asarray(first[t])
        np.testing.assert_allclose(bootstrap[kept], value[kept], rtol=1e-4, atol=1e-5)
        reset_mattered |= not np.allclose(bootstrap, value, atol=1e-4)
    assert reset_mattered
    every = model.value(params, obs, memories)
    assert every.shape == (TIME, ENVS)
    np.testing.assert_allclose(
        every[1],
        model.value(params, jax.tree.map(lambda x: x[1], obs), jax.tree.map(lambda x: x[1], memories)),
        rtol=1e-4,
        atol=1e-5,
    )


def test_steps_before_a_reset_do_not_reach_past_it() -> None:
    env = spec(VECTOR, gym_spaces.Discrete(2))
    model = actor_critic(env, "gru", (8,), 5)
    params = jax.jit(model.init)(jax.random.key(0))
    obs = observations(VECTOR, (TIME, 1))
    first = jnp.zeros((TIME, 1), bool).at[3].set(True)

    def late_value(obs):
        return model.unroll(params, obs, model.initial_memory(1), first)[1][5, 0]

    reach = np.abs(jax.grad(late_value)(obs)).sum((1, 2))
    assert (reach[:3] == 0).all()
    assert (reach[3:] > 0).all()


def test_illegal_actions_are_never_taken_and_gradients_are_finite() -> None:
    env = spec(MASKED, gym_spaces.Discrete(4))
    model = actor_critic(env, "gru", (8,), 5)
    params = jax.jit(model.init)(jax.random.key(0))
    params["policy"]["kernel"] = params["policy"]["kernel"] * 500
    obs = observations(MASKED, (TIME, 64))
    mask = np.asarray(obs["action_mask"]).copy()
    mask[..., 1] |= mask.sum(-1) == 0
    obs["action_mask"] = jnp.asarray(mask)
    first = jnp.zeros((TIME, 64), bool)
    policy, _, _ = model.unroll(params, obs, model.initial_memory(64), first)
    action = policy.sample(jax.random.split(jax.random.key(0), (TIME, 64)))
    assert np.take_along_axis(mask, np.asarray(action)[..., None], -1).all()
    assert (np.take_along_axis(mask, np.asarray(policy.mode())[..., None], -1) == 1).all()

    @jax.jit
    @jax.grad
    def gradient(params):
        policy, value, _ = model.unroll(params, obs, model.initial_memory(64), first)
        return jnp.mean(policy.log_prob(action) + policy.entropy() + jnp.square(value))

    found = jax.tree.leaves(gradient(params))
    assert all(jnp.isfinite(leaf).all() for leaf in found)
    assert all(jnp.abs(leaf).max() > 0 for leaf in found)


class Linear:
    """A user's network: no library, no base class."""

    def init(self, key, obs):
        return {"kernel": jax.random.normal(key, (obs["observation"].shape[-1], 7))}

    def apply(self, params, obs):
        return obs["observation"] @ params["kernel"]


def test_a_plain_class_is_a_network() -> None:
    model = actor_critic(spec(MASKED, gym_spaces.Discrete(4)), Linear())
    assert isinstance(model, ActorCritic)
    assert model.shared
    assert not model.recurrent
    params = model.init(jax.random.key(0))
    obs = observations(MASKED, (TIME, ENVS))
    policy, value, _ = model.unroll(params, obs, (), firsts())
    features = obs["observation"] @ params["torso"]["kernel"]
    np.testing.assert_allclose(value, (features @ params["value"]["kernel"])[..., 0], rtol=1e-4, atol=1e-5)
    assert policy.entropy().shape == (TIME, ENVS)


def test_a_network_with_wrong_features_is_told_so() -> None:
    class Wrong(Linear):
        def apply(self, params, obs):
            return jnp.zeros(3)

    with pytest.raises(UsageError, match=r"Wrong gave .*\n.*\[batch, width\]"):
        actor_critic(spec(MASKED, gym_spaces.Discrete(4)), Wrong()).init(jax.random.key(0))


def test_unsupported_spaces_are_named() -> None:
    with pytest.raises(UsageError, match="action space is Text"):
        actor_critic(spec(VECTOR, gym_spaces.Text(3)))
