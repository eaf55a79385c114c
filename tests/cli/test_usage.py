"""Wrong command lines: one clear message on stderr, the right exit code, nothing on stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

Command = Callable[[str], Any]

WRONG = [
    ("trian ppo CartPole-v1", "no command 'trian'", "'train'"),
    ("train", "ALGORITHM and ENV missing", "usage: sherd train ALGORITHM ENV"),
    ("train ppo", "ENV missing", "usage: sherd train ALGORITHM ENV"),
    ("eval", "RUN missing", "usage: sherd eval RUN"),
    ("check-env", "ENV missing", "usage: sherd check-env ENV"),
    ("graph ppo", "ENV missing", "usage: sherd graph ALGORITHM ENV"),
    ("train poo CartPole-v1", "unknown algorithm 'poo'", "did you mean 'ppo'?"),
    ("train ppo CartPol-v1", "no environment 'CartPol-v1'", "did you mean 'CartPole-v1'?"),
    ("train ppo graph/CartPol-v1", "'graph/CartPol-v1'", "did you mean 'graph/CartPole-v1'?"),
    ("train ppo CartPole-v1 --policy Fusd", "unknown distribution policy 'Fusd'", "did you mean 'Fused'?"),
    ("train ppo CartPole-v1 --policy=Fusd", "unknown distribution policy 'Fusd'", "did you mean 'Fused'?"),
    ("train ppo CartPole-v1 --stepz 10", "unknown flag '--stepz'", "did you mean '--steps'?"),
    ("train ppo CartPole-v1 --stepz=10", "unknown flag '--stepz'", "did you mean '--steps'?"),
    ("train ppo CartPole-v1 --learning-rate 1", "unknown flag", "did you mean '--algo.learning-rate'?"),
    ("train ppo CartPole-v1 --resume runs/a", "unknown flag '--resume'", "a run cannot be continued"),
    ("train ppo CartPole-v1 --algo.horison 1", "unknown flag", "did you mean '--algo.horizon'?"),
    ("train ppo CartPole-v1 --algo.lr 1", "unknown flag", "did you mean '--algo.learning-rate'?"),
    ("train ppo CartPole-v1 --gamma 1", "unknown flag", "did you mean '--algo.discount'?"),
    ("train ppo CartPole-v1 --policy.devices 2", "unknown flag '--policy.devices'", "name one that has it"),
    ("graph ppo CartPole-v1 --policy.actors 2", "unknown flag '--policy.actors'", "name one that has it"),
    ("train ppo CartPole-v1 --policy Coarse", "unknown distribution policy", "'SingleLearnerCoarse'?"),
    ("train ppo CartPole-v1 --algo.dual-clip no", "--algo.dual-clip", "'no' is neither None nor a number"),
    ("train ppo CartPole-v1 --executor inlin", "unknown executor 'inlin'", "did you mean 'inline'?"),
    ("train ppo CartPole-v1 --steps many", "--steps", "'many' is not a whole number"),
    ("train ppo CartPole-v1 --algo.clip wide", "--algo.clip", "'wide' is not a number"),
    ("train ppo CartPole-v1 --steps", "--steps", "--help"),
    ("train ppo CartPole-v1 --steps 0", "steps is 0", "at least 1"),
    ("train ppo CartPole-v1 --seed 9223372036854775808", "seed is 9223372036854775808", "at most 92233720"),
    ("eval nothing-here --seed 9223372036854775808", "seed is 9223372036854775808", "at most 92233720"),
    ("check-env CartPole-v1 --seed 9223372036854775808", "seed is 9223372036854775808", "at most 92233720"),
    ("train ppo CartPole-v1 --algo.learning-rate -1", "learning_rate is -1.0", "--algo.learning-rate"),
    ("train ppo CartPole-v1 --algo.discount 2", "discount is 2.0", "from 0 to 1"),
    ("train ppo CartPole-v1 --algo.clip -3", "clip is -3.0", "--algo.clip"),
    ("train ppo CartPole-v1 --algo.hidden 0", "hidden is 0", "--algo.hidden"),
    ("train ppo CartPole-v1 --algo.epochs 0", "epochs is 0", "--algo.epochs"),
    ("graph sac Pendulum-v1 --algo.horizon 0", "horizon is 0", "--algo.horizon"),
    ("train dqn CartPole-v1 --envs 7", "128", "or as many environments as divide it"),
    ("train ppo CartPole-v1 extra", "unexpected argument 'extra'", "usage"),
    ("train ppo CartPole-v1 --algo.hidden 64 wide", "--algo.hidden", "wide"),
    ("train ppo CartPole-v1 --policy Fused", "Fused needs a graph environment", "--policy Single"),
    ("train ppo CartPole-v1 --policy Fused", "CartPole-v1 is a host simulator", "graph/CartPole-v1"),
    ("train ppo graph/CartPole-v1 --policy Fused --policy.devices 3", "8 environments", "multiple of 3"),
    ("train ppo CartPole-v1 --algo.horizon 10 --algo.minibatches 3", "10", "3"),
    ("train nowhere:Tiny CartPole-v1", "no module 'nowhere'", "directory"),
    ("train __main__:Mine CartPole-v1", "a script defined 'Mine'", "my_module:Mine"),
    ("train mine:Tinny CartPole-v1", "no 'Tinny'", "did you mean 'Tiny'?"),
    ("train mine:Plain CartPole-v1", "mine:Plain is not an Algorithm", "sherd.Algorithm"),
    ("train ppo CartPole-v1 --policy mine:Tiny", "not a DistributionPolicy", "sherd.DistributionPolicy"),
    ("train ppo mine:Talking", "words", "Text"),
    ("train ppo mine:Sequences", "ear", "Sequence"),
    ("eval nothing-here", "nothing-here is not a run", "config.json"),
    ("eval nothing-here --episode 3", "unknown flag '--episode'", "did you mean '--episodes'?"),
    ("eval nothing-here --episodes 0", "episodes is 0", "at least 1"),
    ("check-env CartPol-v1", "no environment 'CartPol-v1'", "did you mean 'CartPole-v1'?"),
    ("check-env CartPole-v1 --steps 0", "steps is 0", "at least 1"),
    ("graph ppo CartPole-v1 --envs 0", "envs is 0", "at least 1"),
    ("graph ppo CartPole-v1 --svg missing/graph.svg", "missing/graph.svg", "--svg"),
    ("graph ppo CartPole-v1 --policy Fused", "Fused needs a graph environment", "--policy Single"),
    ("list algorithm", "cannot list 'algorithm'", "did you mean 'algorithms'?"),
    ("list envs policies", "unexpected argument 'policies'", "usage: sherd list"),
]


@pytest.mark.parametrize(("line", "what", "remedy"), WRONG, ids=[line for line, _, _ in WRONG])
def test_wrong_usage_is_one_clear_message(sherd: Command, line: str, what: str, remedy: str) -> None:
    outcome = sherd(line)
    assert outcome.code == 2, outcome.err
    assert outcome.err.startswith("sherd: ")
    assert outcome.err.count("sherd: ") == 1
    assert what in outcome.err
    assert remedy in outcome.err
    assert "Traceback" not in outcome.err
    assert "│" not in outcome.err
    assert outcome.out == ""


def test_unknown_policy_flag_names_only_flags_that_exist(sherd: Command) -> None:
    assert (
        "--policy.devices"
        not in sherd("train ppo CartPole-v1 --policy.devicez 2").err.partition("did you")[2]
    )
    assert (
        "did you mean '--policy.devices'?"
        in sherd("train ppo graph/CartPole-v1 --policy Fused --policy.devicez 2").err
    )


def test_a_missing_extra_is_named(sherd: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "ale_py" or name.startswith("ale_py.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ale_py", None)
    outcome = sherd("train ppo ALE/Pong-v5")
    assert outcome.code == 2
    assert "ale_py" in outcome.err
    assert "pip install 'sherd[atari]'" in outcome.err


def test_a_run_is_never_overwritten(sherd: Command, home: Any) -> None:
    (home / "old").mkdir()
    (home / "old" / "config.json").write_text("{}")
    outcome = sherd("train mine:Tiny mine:Plain --run-dir old")
    assert outcome.code == 2
    assert "old already holds a run" in outcome.err
    assert (home / "old" / "config.json").read_text() == "{}"


def test_a_directory_of_something_else_is_no_run(sherd: Command, home: Any) -> None:
    (home / "config.json").write_text('{"algorithm": {}}')
    outcome = sherd("eval .")
    assert outcome.code == 2
    assert "does not describe a run" in outcome.err


def test_a_fault_in_the_users_code_names_its_line(sherd: Command) -> None:
    outcome = sherd("train mine:Broken mine:Plain")
    assert outcome.code == 2
    assert "mine.py:" in outcome.err
    assert "return [][0]" in outcome.err
    assert "internal error" not in outcome.err
    assert "Traceback" not in outcome.err


def test_a_module_that_cannot_be_read_names_its_line(sherd: Command, home: Any) -> None:
    (home / "halfway.py").write_text("x = 1\ndef f(:\n")
    outcome = sherd("train halfway:F mine:Plain")
    assert outcome.code == 2
    assert "while importing halfway: SyntaxError" in outcome.err
    assert "halfway.py:2" in outcome.err


def test_a_fault_outside_the_loop_names_the_method(sherd: Command, home: Any) -> None:
    (home / "lost.py").write_text(
        "from dataclasses import dataclass\nfrom mine import Tiny\n\n@dataclass(frozen=True)\n"
        "class Lost(Tiny):\n    def init(self, key):\n        return [][0]\n"
    )
    outcome = sherd("train lost:Lost mine:Plain")
    assert outcome.code == 2
    assert "in Lost.init: IndexError" in outcome.err
    assert "lost.py:7" in outcome.err


def test_our_own_fault_is_one_line_and_a_hint(sherd: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sherd.cli.listing.environments", partial({}.__getitem__, "gone"))
    outcome = sherd("list envs")
    assert outcome.code == 1
    assert outcome.err.startswith("sherd: ")
    assert "KeyError: 'gone'" in outcome.err
    assert "--debug" in outcome.err
    assert "Traceback" not in outcome.err


def test_debug_gives_the_traceback(sherd: Command) -> None:
    outcome, without = sherd("train ppo --debug"), sherd("train ppo")
    assert outcome.code == without.code == 2
    assert outcome.err.startswith("Traceback")
    assert outcome.err.endswith(without.err)
