"""Sample Factory's APPO: run_sample_factory.py WORKLOAD mode=serial|sync|async workers=2 threads=1

serial: one process; sync: worker processes, and learning waits for them; async: learning overlaps acting,
as it does by default.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

import common
import workloads

with common.imports("sample-factory", __doc__):
    import torch
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.algo.utils.misc import ExperimentStatus
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

FOR_EVER = 10**9


class Marks(AlgoObserver):
    """Marks whenever the number of steps that it counts has grown."""

    def __init__(self, meter: common.Meter) -> None:
        self.meter, self.last = meter, 0

    def on_training_step(self, runner: Any, training_iteration: int) -> None:
        """Called after every turn of the learner."""
        steps = sum(runner.env_steps.values())
        if steps > self.last:
            self.last = steps
            if self.meter.mark(steps):
                runner.cfg.train_for_env_steps = 0  # it looks after every turn whether it has made enough


def make(name: str, cfg: Any, env_config: Any, render_mode: Any = None) -> Any:
    """One environment."""
    return common.make_env(name)


def flags(task: common.Task, folder: str) -> list[str]:
    """The workload in Sample Factory's words."""
    work, mode, workers = task.workload, task.get("mode", "serial"), task.number("workers", 2)
    workers = 1 if mode == "serial" else workers
    settings = {
        "env": work.env,
        "algo": "APPO",
        "device": "cpu",
        "experiment": "measured",
        "train_dir": folder,
        "serial_mode": mode == "serial",
        "async_rl": mode == "async",
        "batched_sampling": False,
        "num_workers": workers,
        "num_envs_per_worker": work.envs // workers,
        "worker_num_splits": 1 if mode == "serial" else 2,
        "rollout": work.horizon,
        "batch_size": work.minibatch,
        "num_batches_per_epoch": work.minibatches,
        "num_epochs": work.epochs,
        "learning_rate": workloads.LEARNING_RATE,
        "gamma": workloads.DISCOUNT,
        "gae_lambda": workloads.GAE_LAMBDA,
        "ppo_clip_ratio": workloads.CLIP,
        "exploration_loss_coeff": workloads.ENTROPY_COST,
        "value_loss_coeff": workloads.VALUE_COST,
        "max_grad_norm": workloads.MAX_GRAD_NORM,
        "use_rnn": False,
        "normalize_input": False,
        "normalize_returns": False,
        "with_vtrace": False,
        "train_for_env_steps": FOR_EVER,
        "save_every_sec": 100_000,
        "heartbeat_reporting_interval": 100_000,  # it is stopped while others are measured
        "env_frameskip": 1,
        "restart_behavior": "overwrite",
    }
    given = [f"--{name}={value}" for name, value in settings.items()]
    if work.env.startswith("ALE/"):
        image = "--encoder_conv_architecture=convnet_atari --encoder_conv_mlp_layers 512 --obs_scale=255"
        return given + f"{image} --nonlinearity=relu --actor_critic_share_weights=True".split()
    layers = "--encoder_mlp_layers " + " ".join(map(str, work.hidden))
    more = "--nonlinearity=tanh --actor_critic_share_weights=False --adaptive_stddev=False"
    return given + f"{layers} {more}".split()


def main() -> None:
    """Measure one workload."""
    task = common.Task("sample-factory", "sample-factory", __doc__)
    threads = task.number("threads", 1)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # for the processes that it starts
    torch.set_num_threads(threads)
    register_env(task.workload.env, make)
    folder = tempfile.mkdtemp()
    given = flags(task, folder)
    _, runner = make_runner(parse_full_cfg(parse_sf_args(given)[0], given))
    runner.register_observer(Marks(task.meter))
    if runner.init() != ExperimentStatus.SUCCESS:
        raise SystemExit("Sample Factory did not start")
    runner.run()
    task.report()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # its workers may take long to say goodbye


if __name__ == "__main__":
    main()
