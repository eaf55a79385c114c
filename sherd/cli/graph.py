"""`sherd graph`: what one training iteration computes, whole or cut by a policy, as text or as a drawing."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sherd.algorithms import load_algorithm
from sherd.cli.arguments import Section, parse, require, take_positionals, value_of, wants_help
from sherd.envs import describe
from sherd.errors import SherdWarning, UsageError, require_range
from sherd.graph import Graph, check, trace
from sherd.optimise import optimise
from sherd.plan import place
from sherd.policies import load_policy
from sherd.policies.partition import Fragments, partition

USAGE = "sherd graph ALGORITHM ENV"
DESCRIPTION = """\
Trace one training iteration of an algorithm on an environment, check it, and print it. Nothing is trained."""


@dataclass(frozen=True)
class Options:
    """What to trace, and where to put it."""

    envs: int = 8
    """How many environments are stepped in parallel."""
    policy: str | None = None
    """Show how this distribution policy cuts it: the fragments, what crosses between them, their programs."""
    svg: Path | None = None
    """Draw it into this file instead of printing it."""
    debug: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show tracebacks and the warnings of all libraries."""


def run(arguments: list[str]) -> int:
    """Run the command."""
    found, flags = take_positionals(arguments, 2)
    if not wants_help(flags):
        require(found, ("ALGORITHM", "ENV"), f"{USAGE} [flags]   e.g. sherd graph ppo CartPole-v1")
    algorithm = load_algorithm(found[0] if found else "ppo")
    named = value_of("--policy", flags)
    policy = load_policy("Single" if named is None else named)
    sections = [
        Section("options", Options),
        Section("policy", policy, "policy"),
        Section("algo", algorithm, "algo"),
    ]
    given = parse(sections, flags, USAGE, DESCRIPTION)
    options: Options = given.options
    require_range("envs", options.envs, 1)
    spec = describe(found[1])
    given.policy.require(spec, options.envs)
    graph = check(trace(given.algo, spec, options.envs))
    for text in graph.warnings:
        warnings.warn(text, SherdWarning, stacklevel=1)
    shown = optimise(partition(graph, given.policy)) if options.policy else graph
    if options.svg:
        _draw(shown, options.svg)
    else:
        print(shown, end="")
        if isinstance(shown, Fragments) and len(shown.fragments) + shown.fragments[0].replicas > 2:
            print(f"\n{place(shown)}")
    return 0


def _draw(shown: Graph | Fragments, file: Path) -> None:
    from sherd.graph.draw import draw
    from sherd.policies.draw import draw_cut

    drawn = draw(shown) if isinstance(shown, Graph) else draw_cut(shown)
    try:
        file.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write {file}: {error.strerror}\n  fix: choose another --svg FILE"
        ) from error
    print(f"drawn to {file}")
