"""`sherd check-env`: step an environment and name everything that is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from sherd.cli.arguments import Section, parse, require, take_positionals, wants_help
from sherd.envs.check import check_env
from sherd.errors import LARGEST_SEED, require_range

USAGE = "sherd check-env ENV"
DESCRIPTION = """\
Step an environment with random actions and name everything that is wrong with it.

ENV is an id (`sherd list envs`) or your own as my_module:MyEnv. Exits with 0 if it is sound, 1 if not."""


@dataclass(frozen=True)
class Options:
    """How to check."""

    steps: int = 1000
    """How many steps to make."""
    seed: int = 0
    """Where actions and episodes come from."""
    debug: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show tracebacks and the warnings of all libraries."""


def run(arguments: list[str]) -> int:
    """Run the command."""
    found, flags = take_positionals(arguments, 1)
    if not wants_help(flags):
        require(found, ("ENV",), f"{USAGE} [flags]   e.g. sherd check-env CartPole-v1")
    options: Options = parse([Section("options", Options)], flags, USAGE, DESCRIPTION).options
    require_range("steps", options.steps, 1)
    require_range("seed", options.seed, 0, LARGEST_SEED)
    findings = check_env(found[0], options.steps, options.seed)
    for problem in findings:
        print(problem)
    for note in findings.notes:
        print(f"note: {note}")
    if not findings:
        print(f"{found[0]}: nothing wrong in {options.steps:,} steps")
    return 1 if findings else 0
