"""Find the command, run it, and turn whatever happens into a message and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from sherd.cli.interrupt import INTERRUPTED, end_at_second_interrupt
from sherd.cli.messages import complain, explain, quiet_libraries
from sherd.errors import UsageError, nearest

COMMANDS = {
    "train": "sherd.cli.train",
    "eval": "sherd.cli.evaluate",
    "graph": "sherd.cli.graph",
    "check-env": "sherd.cli.check_env",
    "list": "sherd.cli.listing",
}

HELP = """\
sherd: write the training loop once, cut it anywhere, run it from a laptop to a cluster

usage: sherd COMMAND [arguments]

commands:
  train ALGORITHM ENV    train an algorithm on an environment
  eval RUN               play episodes with what a run has learnt
  graph ALGORITHM ENV    print or draw what one training iteration computes
  check-env ENV          step an environment and name everything that is wrong with it
  list [KIND]            what there is: algorithms, envs, policies

examples:
  sherd train ppo CartPole-v1 --steps 200000 --run-dir runs/first
  sherd eval runs/first --episodes 100
  sherd train ppo graph/CartPole-v1 --policy Fused --envs 64 --steps 1000000

`sherd COMMAND --help` explains a command's flags. --debug adds tracebacks and all warnings to any command.
Your own code goes by its path: `sherd train my_module:MyAlgorithm my_module:MyEnv`.
Exit codes: 0 done, 1 the run failed or a check found problems, 2 wrong usage, 130 ended by Ctrl-C or SIGTERM.
"""


def entry() -> None:
    """The console script."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Run a command line and return its exit code.

    >>> main(["--version"])
    sherd 0.1.0
    0
    """
    debug = "--debug" in argv
    try:
        with quiet_libraries(debug), end_at_second_interrupt():
            code = _run([argument for argument in argv if argument != "--debug"])
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        message, code = explain(error)
        complain(message)
        return code


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if argv[0] in ("-V", "--version"):
        from sherd import __version__

        print(f"sherd {__version__}")
        return 0
    command, *arguments = argv
    if command not in COMMANDS:
        raise UsageError(
            f"there is no command {command!r}: {nearest(command, COMMANDS)}\n  fix: see `sherd --help`"
        )
    code: int = importlib.import_module(COMMANDS[command]).run(arguments)
    return code


def _discard_stdout() -> None:
    """The reader of a pipe is gone (`| head`); the interpreter's own last flush must not complain of it."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
