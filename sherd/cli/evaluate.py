"""`sherd eval`: play episodes with what a run has learnt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sherd.cli.arguments import Section, parse, require, take_positionals, wants_help
from sherd.run import evaluate
from sherd.runtime.events import to_json
from sherd.runtime.progress import format_number

USAGE = "sherd eval RUN"
DESCRIPTION = """\
Play episodes with what a run has learnt, without exploration.

RUN is the --run-dir of a training run. If it uses your own modules, start from their directory."""


@dataclass(frozen=True)
class Options:
    """What to play, and what to print."""

    episodes: int = 100
    """How many episodes to play."""
    seed: int | None = None
    """Where the episodes come from; None: from the run's seed, but other ones than training saw."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print one line of JSON on stdout, and nothing else there."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show no progress."""
    debug: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show tracebacks and the warnings of all libraries."""


def run(arguments: list[str]) -> int:
    """Run the command."""
    found, flags = take_positionals(arguments, 1)
    if not wants_help(flags):
        require(found, ("RUN",), f"{USAGE} [flags]   e.g. sherd eval runs/first --episodes 100")
    options: Options = parse([Section("options", Options)], flags, USAGE, DESCRIPTION).options
    with _progress(options.quiet) as progress:
        task = progress.add_task("evaluating", total=options.episodes)
        played = evaluate(
            found[0], options.episodes, options.seed, lambda done: progress.update(task, completed=done)
        )
    result = {
        "return_mean": played.return_mean,
        "return_std": played.return_std,
        "return_min": float(played.returns.min()),
        "return_max": float(played.returns.max()),
        "length_mean": float(played.lengths.mean()),
    }
    episodes = len(played.returns)
    if options.json:
        print(to_json({"run": found[0], "episodes": episodes, **result}))
    else:
        mean, spread, low, high, length = map(format_number, result.values())
        print(
            f"return {mean} ± {spread} over {episodes} episodes, from {low} to {high}; mean length {length}"
        )
    return 0


def _progress(quiet: bool) -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
