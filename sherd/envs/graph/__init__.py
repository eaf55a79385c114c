"""Environments that are pure JAX functions, so that a whole training loop can be one XLA program.

In: the id of an environment (`registry.make`), keys, states and actions. Out: a `GraphEnv`, and batches of
it stepped with automatic reset (`batch`). One file per source: our own (`classic`), `gymnax_adapter`,
`brax_adapter`. May import: JAX, `sherd.errors`, `sherd.spaces`. Never imported by host-simulator code.
"""
