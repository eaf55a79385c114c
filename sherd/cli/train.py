"""`sherd train`: an algorithm, an environment, and how to run them."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from sherd.algorithms import load_algorithm
from sherd.cli.arguments import Section, parse, require, take_positionals, value_of, wants_help
from sherd.cli.interrupt import INTERRUPTED
from sherd.policies import DistributionPolicy, load_policy
from sherd.run import Run, RunConfig, train
from sherd.runtime.display import Display
from sherd.runtime.events import to_json
from sherd.runtime.jax_settings import use_devices
from sherd.runtime.progress import format_number

USAGE = "sherd train ALGORITHM ENV"
DESCRIPTION = """\
Train an algorithm on an environment: built-in names (`sherd list`), or your own as my_module:Name.

Without --run-dir nothing is written to disk. Ctrl-C ends after the current iteration, keeps what was learnt
and exits with code 130; a second one ends at once. With an ALGORITHM and a --policy before it, --help shows
their own flags."""


@dataclass(frozen=True)
class Options:
    """How to launch, and what to print."""

    policy: str = "Single"
    """The distribution policy: what runs where (`sherd list policies`)."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """End with one line of JSON on stdout, and print nothing else there."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show no progress."""
    debug: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show tracebacks and the warnings of all libraries."""


class _Screen(Display):
    """The live display without its closing numbers, which the command prints as its result."""

    def finish(self, summary: dict[str, Any]) -> None:
        """Leave the last picture."""
        del summary
        self.close()


def run(arguments: list[str]) -> int:
    """Run the command."""
    found, flags = take_positionals(arguments, 2)
    if not wants_help(flags):
        require(
            found, ("ALGORITHM", "ENV"), f"{USAGE} [flags]   e.g. sherd train ppo CartPole-v1 --steps 200000"
        )
    algorithm = load_algorithm(found[0] if found else "ppo")
    named = value_of("--policy", flags)
    policy = load_policy("Single" if named is None else named)
    sections = [
        Section("config", RunConfig),
        Section("options", Options),
        Section("policy", policy, "policy"),
        Section("algo", algorithm, "algo"),
    ]
    given = parse(sections, flags, USAGE, DESCRIPTION if found else f"{DESCRIPTION} Those below are ppo's.")
    _make_devices(given.policy)
    sinks = [] if given.options.quiet else [_Screen()]
    config = {field.name: getattr(given.config, field.name) for field in dataclasses.fields(RunConfig)}
    with prints_to_stderr() if given.options.json else contextlib.nullcontext():
        finished = train(given.algo, found[1], given.policy, sinks, **config)
    if given.options.json:
        where = {"algorithm": found[0], "env": found[1], "policy": given.policy.name, **_place(finished)}
        print(to_json(where | finished.summary))
    else:
        cut = policy_words(given.options.policy, given.policy) + changed_flags("algo", given.algo)
        print(summarise(finished, found[0], found[1], cut, hints=not given.options.quiet))
    return INTERRUPTED if finished.summary["interrupted"] else 0


@contextlib.contextmanager
def prints_to_stderr() -> Iterator[None]:
    """Whatever an environment prints goes to standard error: standard output is for the result alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _make_devices(policy: DistributionPolicy) -> None:
    devices = getattr(policy, "devices", 0)
    if devices > 1:
        # Too late if JAX already runs in this process; lowering then says how many devices there are.
        with contextlib.suppress(RuntimeError):
            use_devices(devices)


def _place(finished: Run) -> dict[str, Any]:
    return {"seed": finished.config.seed, "run_dir": finished.config.run_dir}


def policy_words(name: str, policy: DistributionPolicy) -> str:
    """A policy as one types it: nothing for the default one, otherwise its name and what is not default.

    >>> from sherd.policies.coarse import SingleLearnerCoarse
    >>> policy_words("SingleLearnerCoarse", SingleLearnerCoarse(actors=4, asynchronous=True))
    ' --policy SingleLearnerCoarse --policy.actors 4 --policy.asynchronous'
    """
    return ("" if name == "Single" else f" --policy {name}") + changed_flags("policy", policy)


def changed_flags(prefix: str, thing: Any) -> str:
    """The fields of an algorithm or policy that do not have their default, as flags.

    >>> from sherd.algorithms.ppo import PPO
    >>> changed_flags("algo", PPO(hidden=(32, 32), anneal=False, clip=0.1))
    ' --algo.no-anneal --algo.clip 0.1 --algo.hidden 32 32'
    """
    words = ""
    for field in dataclasses.fields(thing):
        name, value = field.name.replace("_", "-"), getattr(thing, field.name)
        if value == field.default:
            continue
        if isinstance(value, bool) and isinstance(field.default, bool):
            words += f" --{prefix}.{name}" if value else f" --{prefix}.no-{name}"
        else:
            parts = value if isinstance(value, tuple) else (value,)
            words += f" --{prefix}.{name} {' '.join(map(str, parts))}"
    return words


def summarise(finished: Run, algorithm: str, env: str, cut: str, hints: bool) -> str:
    """A finished run for a person: what came out, and what to do next; `cut` is what was typed of both."""
    summary, run_dir = finished.summary, finished.config.run_dir
    ended = "interrupted" if summary["interrupted"] else "finished"
    lines = [f"{ended}: {summary['steps']:,} steps in {summary['seconds']:.1f} s{_rate(finished)}"]
    if summary["return_mean"] is not None:
        mean = format_number(summary["return_mean"])
        if summary["evaluated"]:
            mean += f" ± {format_number(summary['return_std'])}"
        over = (
            f"{summary['eval_episodes']} episodes of evaluation"
            if summary["evaluated"]
            else "its last training episodes"
        )
        lines.append(f"return {mean} over {over}")
    lines += [summary[name] for name in ("bottleneck", "warning") if summary.get(name)]
    lines.append(
        f"written to {run_dir}" if run_dir else "nothing was written to disk; --run-dir DIRECTORY keeps a run"
    )
    if hints:
        sherd = command_name()
        following = [f"{sherd} eval {run_dir}"] if run_dir and summary["steps"] else []
        if run_dir and importlib.util.find_spec("tensorboard"):
            following.append(f"tensorboard --logdir {run_dir}")
        envs = f" --envs {finished.config.envs}" if finished.config.envs != RunConfig.envs else ""
        following.append(f"{sherd} graph {algorithm} {env}{cut}{envs}")
        lines += ["next:", *(f"  {command}" for command in following)]
    return "\n".join(lines)


def _rate(finished: Run) -> str:
    """How fast it was, if it came to anything, and what that includes."""
    iterations = len(finished.metrics.get("steps", ()))
    if not iterations:
        return ""
    rate = format_number(finished.summary["steady_steps_per_second"])
    return f", {rate} steps/s{', compiling included' if iterations == 1 else ' once compiled'}"


def command_name() -> str:
    """What the user has to type for this command: its path, where the shell would not find it."""
    if shutil.which("sherd"):
        return "sherd"
    beside = Path(sys.executable).parent / "sherd"
    return os.path.relpath(beside) if beside.exists() else "python -m sherd"
