"""Feed-forward encoders, as Flax Linen modules: layers, images, and trees of both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym_spaces

from sherd.errors import UsageError, nearest
from sherd.nn.convolution import Layer, convolutions
from sherd.nn.products import product
from sherd.spaces import MASK_KEY, Space, Tree

_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
}
_ORTHOGONAL = nn.initializers.orthogonal(math.sqrt(2))
# The smallest side that survives the three unpadded convolutions of the Nature network.
_NATURE_SIDE = 36


class Weights(nn.Module):
    """The weights of a dense or convolutional layer, by themselves.

    >>> kernel, bias = Weights((3, 8)).init_with_output(jax.random.key(0))[0]
    >>> kernel.shape, bias.shape
    ((3, 8), (8,))
    """

    shape: tuple[int, ...]

    @nn.compact
    def __call__(self) -> tuple[jax.Array, jax.Array]:
        """Kernel [..., inputs, outputs] and bias [outputs]."""
        kernel = self.param("kernel", _ORTHOGONAL, self.shape)
        return kernel, self.param("bias", nn.initializers.zeros, self.shape[-1:])


class MLP(nn.Module):
    """Dense layers over [batch, width], initialised as PPO implementations agree on.

    >>> network = MLP(hidden=(8,))
    >>> network.apply(network.init(jax.random.key(0), jnp.zeros((2, 3))), jnp.zeros((2, 3))).shape
    (2, 8)
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Features [batch, last hidden width]."""
        if self.activation not in _ACTIVATIONS:
            raise UsageError(f"no activation {self.activation!r}; {nearest(self.activation, _ACTIVATIONS)}")
        x = jnp.asarray(x, jnp.float32)
        widths = [x.shape[-1], *self.hidden]
        shapes = zip(widths, self.hidden)
        weights = [Weights(shape, name=f"Dense_{place}")() for place, shape in enumerate(shapes)]
        return dense(weights, x, _ACTIVATIONS[self.activation])


def dense(
    weights: Sequence[tuple[jax.Array, jax.Array]], x: jax.Array, activation: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """Dense layers, one after the other: [batch, inputs] to [batch, outputs]."""
    for kernel, bias in weights:
        x = activation(product(x, kernel) + bias)
    return x


class NatureCNN(nn.Module):
    """The convolutional network of Mnih et al. (2015), or a smaller one where that would not fit.

    Images come channels first or last, told apart by which of the two sizes is smaller; uint8 is
    scaled to [0, 1]. `units` is 512 if not given, 128 for small images.

    >>> network, frames = NatureCNN(), jnp.zeros((2, 4, 84, 84), jnp.uint8)
    >>> jax.eval_shape(lambda: network.init_with_output(jax.random.key(0), frames)[0]).shape
    (2, 512)
    """

    units: int | None = None

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Features [batch, units]."""
        x = jnp.asarray(images)
        if x.shape[1] < x.shape[3]:
            x = jnp.moveaxis(x, 1, 3)
        layers, channels, weights = _convolutions(min(x.shape[1:3])), x.shape[3], []
        for place, layer in enumerate(layers):
            shape = (layer.size, layer.size, channels, layer.channels)
            weights.append(Weights(shape, name=f"Conv_{place}")())
            channels = layer.channels
        features = convolutions(x, weights, layers)
        features = features.reshape((features.shape[0], -1))
        units = self.units or (512 if min(x.shape[1:3]) >= _NATURE_SIDE else 128)
        last = Weights((features.shape[1], units), name="Dense_0")()
        return dense([last], features, jax.nn.relu)


def _convolutions(side: int) -> tuple[Layer, ...]:
    """The layers for images whose smaller side is this."""
    if side >= _NATURE_SIDE:
        return Layer(32, 8, 4), Layer(64, 4, 2), Layer(64, 3, 1)
    stride, padding = 2 if side >= 16 else 1, 0 if side >= 7 else 1
    return Layer(16, 3, stride, padding), Layer(32, 3, stride, padding)


@dataclass(frozen=True)
class Leaf:
    """Where a leaf of the observation is found and how it enters the network."""

    path: tuple[str | int, ...]
    kind: Literal["image", "vector", "choices"]
    sizes: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    scale: float = 1.0

    def read(self, obs: Tree) -> jax.Array:
        """The leaf's array [batch, ...]."""
        for step in self.path:
            obs = obs[step]
        return obs

    def flat(self, obs: Tree) -> jax.Array:
        """The leaf as floats [batch, width]; choices become one-hot."""
        x = jnp.asarray(self.read(obs))
        x = x.reshape((x.shape[0], -1))
        if self.kind == "choices":
            owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
            option = np.concatenate([s + np.arange(n) for s, n in zip(self.starts, self.sizes)])
            x = x if len(self.sizes) == 1 else x[:, owner]
            return (x == option).astype(jnp.float32)
        x = x.astype(jnp.float32)
        return x if self.scale == 1.0 else x * self.scale


def observation_leaves(space: Space, images: bool = True) -> tuple[Leaf, ...]:
    """The leaves a network looks at: all but the action mask. Without `images`, those are vectors too.

    >>> space = gym_spaces.Dict({"room": gym_spaces.Discrete(3), "action_mask": gym_spaces.MultiBinary(2)})
    >>> [(leaf.path, leaf.kind) for leaf in observation_leaves(space)]
    [(('room',), 'choices')]
    """
    if isinstance(space, gym_spaces.Dict):
        seen = [(key, child) for key, child in space.spaces.items() if key != MASK_KEY]
        return tuple(leaf for key, child in seen for leaf in _leaves(child, (key,), images))
    return tuple(_leaves(space, (), images))


def _leaves(space: Space, path: tuple[str | int, ...], images: bool) -> list[Leaf]:
    if isinstance(space, gym_spaces.Dict | gym_spaces.Tuple):
        named: list[Any] = list(
            space.spaces.items() if isinstance(space, gym_spaces.Dict) else enumerate(space.spaces)
        )
        return [leaf for name, child in named for leaf in _leaves(child, (*path, name), images)]
    if isinstance(space, gym_spaces.Discrete):
        return [Leaf(path, "choices", (int(space.n),), (int(space.start),))]
    if isinstance(space, gym_spaces.MultiDiscrete):
        starts = np.asarray(space.start).reshape(-1).tolist()
        return [Leaf(path, "choices", tuple(space.nvec.reshape(-1).tolist()), tuple(starts))]
    if images and isinstance(space, gym_spaces.Box) and len(space.shape) == 3:
        return [Leaf(path, "image")]
    # Bytes are scaled by their bound, so that a memory dump does not saturate the first layer.
    if isinstance(space, gym_spaces.Box) and space.dtype == np.uint8:
        return [Leaf(path, "vector", scale=1.0 / max(1, int(space.high.max())))]
    return [Leaf(path, "vector")]


class Encoder(nn.Module):
    """A torso for any observation tree: images through a CNN, the rest beside them, then an MLP.

    A lone image goes through the CNN only; observations without images through the MLP only. What stands
    `beside` an observation, such as the action that a critic judges, enters the MLP as it is.

    >>> network = Encoder(observation_leaves(gym_spaces.Discrete(4)), hidden=(8,))
    >>> obs = jnp.array([0, 3])
    >>> network.apply(network.init(jax.random.key(0), obs), obs).shape
    (2, 8)
    """

    leaves: tuple[Leaf, ...]
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"

    @nn.compact
    def __call__(self, obs: Tree, beside: jax.Array | None = None) -> jax.Array:
        """Features [batch, width]."""
        images = [leaf for leaf in self.leaves if leaf.kind == "image"]
        parts = [NatureCNN()(leaf.read(obs)) for leaf in images]
        parts += [leaf.flat(obs) for leaf in self.leaves if leaf.kind != "image"]
        parts += [] if beside is None else [beside]
        features = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)
        if len(images) == len(parts) == 1:
            return features
        return MLP(self.hidden, self.activation)(features)
