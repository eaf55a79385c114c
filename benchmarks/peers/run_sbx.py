"""SBX, Stable-Baselines3 in JAX: run_sbx.py WORKLOAD vector=dummy|subproc threads=1"""

from __future__ import annotations

import common

with common.imports("sbx", __doc__):
    import flax.linen as nn
    import sbx
    import torch
    from run_sb3 import build, measure


def main() -> None:
    """Measure one workload."""
    task = common.Task("sbx", "sbx-rl", __doc__)
    torch.set_num_threads(task.number("threads", 1))
    measure(task, build(sbx, task, nn.tanh, nn.relu))


if __name__ == "__main__":
    main()
