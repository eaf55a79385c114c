"""Command lines as frozen dataclasses, parsed by tyro; its complaints become one clear message each."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from sherd.errors import UsageError, nearest


@dataclass(frozen=True)
class Section:
    """A dataclass whose fields become flags, all beginning with `prefix` and a dot if there is one."""

    name: str
    kind: type
    prefix: str = ""

    def flags(self) -> Iterator[str]:
        """Every flag that the section gives rise to.

        >>> from sherd.policies import Fused
        >>> list(Section("policy", Fused, "policy").flags())
        ['--policy.devices']
        """
        return _flags(self.kind, f"{self.prefix}." if self.prefix else "")


_HELP = ("-h", "--help")
# Flags that are not followed by a value, wherever they stand.
_SWITCHES = (*_HELP, "--json", "--quiet")
_NUMBER = re.compile(r"[0-9][0-9.e_+-]*")


def wants_help(arguments: Sequence[str]) -> bool:
    """Whether the command line asks for an explanation."""
    return any(argument in _HELP for argument in arguments)


def take_positionals(arguments: Sequence[str], count: int) -> tuple[list[str], list[str]]:
    """The first `count` arguments that are neither flags nor flags' values, and all the others.

    >>> take_positionals(["--steps", "10", "ppo", "CartPole-v1", "--json"], 2)
    (['ppo', 'CartPole-v1'], ['--steps', '10', '--json'])
    """
    found: list[str] = []
    rest: list[str] = []
    value_expected = after_flag = False
    for argument in arguments:
        if argument.startswith("-"):
            switch = argument in _SWITCHES or "=" in argument or re.match(r"--([\w-]+\.)*no-", argument)
            after_flag = value_expected = not switch
            rest.append(argument)
        # A flag may take several values; numbers that follow one are taken for its own.
        elif len(found) == count or value_expected or (after_flag and _NUMBER.fullmatch(argument)):
            value_expected = False
            rest.append(argument)
        else:
            after_flag = False
            found.append(argument)
    return found, rest


def require(found: Sequence[str], names: Sequence[str], usage: str) -> None:
    """Raise unless every positional argument is there."""
    if len(found) < len(names):
        missing = " and ".join(names[len(found) :])
        raise UsageError(f"{missing} missing\n  usage: {usage}")


def value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """The last value given to a flag, before the command line is parsed as a whole.

    >>> value_of("--policy", ["--policy", "Single", "--policy=Fused"])
    'Fused'
    """
    value = None
    for position, argument in enumerate(arguments):
        if argument == flag and position + 1 < len(arguments):
            value = arguments[position + 1]
        elif argument.startswith(flag + "="):
            value = argument.removeprefix(flag + "=")
    return value


def parse(sections: Sequence[Section], arguments: Sequence[str], usage: str, description: str) -> Any:
    """An object with one filled dataclass per section, under its name; `--help` prints and exits."""
    import tyro

    fields = [(part.name, Annotated[part.kind, tyro.conf.arg(name=part.prefix)]) for part in sections]
    whole = dataclasses.make_dataclass("Arguments", fields, kw_only=True)
    told = io.StringIO()
    try:
        # The help goes to stdout, so that whatever arrives at stderr is a complaint.
        with contextlib.redirect_stderr(told), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed: Any
            parsed, unknown = tyro.cli(
                whole, args=list(arguments), prog=usage, description=description, return_unknown_args=True
            )
    except SystemExit as ending:
        if not ending.code:
            raise
        raise UsageError(f"{_complaint(told.getvalue())}\n  fix: see `{usage} --help`") from None
    if unknown:
        raise _unexpected(unknown, [flag for part in sections for flag in part.flags()], usage)
    return parsed


# What Python and tyro say of a value that is no number.
_PLAIN_WORDS = {
    r"no type matching \{None\}\|.* instantiated from \[('.*?')\].*": r"\1 is neither None nor a number",
    r"invalid literal for int\(\) with base 10: ('.*?')": r"\1 is not a whole number",
    r"could not convert string to float: ('.*?')": r"\1 is not a number",
}


def _flags(kind: Any, prefix: str) -> Iterator[str]:
    for field in dataclasses.fields(kind):
        flag = field.name.replace("_", "-")
        if dataclasses.is_dataclass(field.default):
            yield from _flags(field.default, f"{prefix}{flag}.")
            continue
        yield f"--{prefix}{flag}"
        if field.default is True:
            yield f"--{prefix}no-{flag}"


def _complaint(text: str) -> str:
    """The first paragraph inside the box, or between the lines, that tyro draws around a complaint.

    >>> _complaint("Value error\\n  ---------\\n  Error parsing --x:\\n  odd\\n  ---------\\n  For help")
    'Error parsing --x: odd'
    """
    boxed = [line.strip("│ ") for line in text.splitlines() if line.startswith("│")]
    inside = boxed or re.split(r"\s-{5,}\s", text + "\n")[1:2] or [text]
    paragraph = itertools.takewhile(lambda line: not line.startswith("─"), inside)
    told = " ".join(" ".join(paragraph).split())
    for pattern, plain in _PLAIN_WORDS.items():
        told = re.sub(pattern, plain, told)
    return told


# What other libraries call it.
_ELSEWHERE = {
    "lr": "learning-rate",
    "gamma": "discount",
    "lam": "gae-lambda",
    "lambda": "gae-lambda",
    "clip-range": "clip",
    "clip-coef": "clip",
    "ent-coef": "entropy-cost",
    "vf-coef": "value-cost",
    "n-steps": "horizon",
    "num-steps": "horizon",
    "batch-size": "batch",
    "buffer-size": "capacity",
    "n-envs": "envs",
    "num-envs": "envs",
    "total-timesteps": "steps",
    "timesteps": "steps",
}
# What other libraries have and this one does not.
_MISSING = {
    "resume": "a run cannot be continued; `sherd eval RUN_DIR` plays what one has learnt",
}


def _unexpected(unknown: Sequence[str], known: Sequence[str], usage: str) -> UsageError:
    flag = next((argument for argument in unknown if argument.startswith("-")), None)
    if flag is None:
        return UsageError(f"unexpected argument {unknown[0]!r}\n  usage: {usage} [flags]")
    flag = flag.partition("=")[0].replace("_", "-")
    word = flag.lstrip("-").rpartition(".")[2]
    meant = {word} if "." not in flag else set[str]()
    meant |= {_ELSEWHERE[word]} if word in _ELSEWHERE else set()
    inside = [name for name in known if name.lstrip("-").rpartition(".")[2] in meant]
    hint = f"did you mean {inside[0]!r}?" if inside else nearest(flag, known)
    if word in _MISSING:
        hint = _MISSING[word]
    if flag.startswith("--policy.") and not any(name.startswith("--policy.") for name in known):
        hint = "it belongs to a distribution policy; name one that has it with --policy"
    return UsageError(f"unknown flag {flag!r}: {hint}\n  fix: see `{usage} --help`")
