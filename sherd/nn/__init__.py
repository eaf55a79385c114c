"""The pure maths of learning: networks, distributions, returns, statistics, reductions.

In: arrays with leading axes `[time, env, ...]` (learning) or `[env, ...]` (acting), and an `EnvSpec`.
Out: pure functions and frozen objects; parameters, memories and statistics are plain pytrees that the
caller carries. May import `sherd.errors`, `sherd.imports`, `sherd.spaces` and `sherd.author`'s reductions.
"""
