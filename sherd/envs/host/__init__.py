"""Host environments: simulators that step in ordinary memory, batched behind `HostEnv`.

An id and a seed come in, a `HostEnv` that writes into the caller's buffers goes out. One file per source
of simulators: gymnasium (any registered id), cartpole and vectorised (vector entry points), cheetah, atari,
envpool, minatar. May import `sherd.errors` and `sherd.spaces`; nothing here imports JAX.
"""
