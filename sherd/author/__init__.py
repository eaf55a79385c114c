"""What an author writes against: `Algorithm`, stages (`act`, `learn`), handles and declared state.

In: an author's class. Out: the same loop executed eagerly, or recorded by whichever backend is active
(`sherd.graph` brings the tracing one). May import: errors, spaces, envs.
"""

from sherd.author.algorithm import Algorithm
from sherd.author.stage import act, learn
from sherd.author.types import Transition, per_env, shared
from sherd.author.vector import as_vector

__all__ = ["Algorithm", "Transition", "act", "as_vector", "learn", "per_env", "shared"]
