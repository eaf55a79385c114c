"""Environments that are pure JAX functions, so that a whole training loop can be one XLA program.

In: the id of an environment (`registry.make`), keys, states and actions. Out: a `GraphEnv`, and batches of
it stepped with automatic reset (`batch`); what is wrong with a user's own (`faults`). One file per source:
our own (`classic`), `gymnax_adapter`, `brax_adapter`. May import: JAX, `sherd.errors`, `sherd.spaces`, and
how `sherd.envs.host` speaks of faults. Never imported by host-simulator code.
"""
