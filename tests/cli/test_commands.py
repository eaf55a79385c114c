"""What the commands print when all is well, in this process."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sherd.cli.arguments import take_positionals
from sherd.cli.train import Options

Command = Callable[[str], Any]
SMALL = "--steps 64 --envs 4 --eval-episodes 0"


def test_help_teaches_every_command(sherd: Command) -> None:
    from sherd.cli.main import COMMANDS

    text = sherd("--help").out
    assert all(f"\n  {command}" in text for command in COMMANDS)
    assert text.count("\n  sherd ") == 3
    assert sherd("").out == text


@pytest.mark.parametrize("command", ["train", "eval", "graph", "check-env", "list"])
def test_every_command_explains_itself(sherd: Command, command: str) -> None:
    outcome = sherd(f"{command} --help")
    assert outcome.code == 0
    assert f"usage: sherd {command}" in outcome.out
    assert outcome.err == ""


def test_help_shows_the_fields_of_the_dataclasses_and_their_docstrings(sherd: Command) -> None:
    text = " ".join(
        sherd("train mine:Tiny mine:Plain --policy mine:Everything --help").out.replace("│", " ").split()
    )
    assert "--algo.poisoned-from INT The iteration, from 0, in which the loss becomes NaN." in text
    assert "--policy.copies INT A number that can be chosen at launch." in text
    assert "--run-dir" in text
    assert "Without --run-dir nothing is written to disk" in text


def test_help_without_an_algorithm_says_whose_flags_it_shows(sherd: Command) -> None:
    assert "Those below are ppo's." in " ".join(sherd("train --help").out.split())
    assert "Those below" not in sherd("train dqn --help").out


@pytest.mark.parametrize("kind", ["algorithms", "policies"])
def test_list_names_what_is_built_in(sherd: Command, kind: str) -> None:
    import importlib

    built_in = importlib.import_module(f"sherd.{kind}").BUILT_IN
    lines = sherd(f"list {kind}").out.splitlines()
    assert [line.split()[0] for line in lines] == list(built_in)
    assert all(len(line.split()) > 2 for line in lines)


def test_list_envs_names_ids_that_can_be_described(sherd: Command) -> None:
    from sherd.envs import describe

    ids = [line.split()[0] for line in sherd("list envs").out.splitlines()]
    assert {"CartPole-v1", "graph/CartPole-v1", "ALE/Pong-v5", "Ant-v5"} <= set(ids)
    assert len(ids) == len(set(ids))
    for name in ("Taxi-v4", "CartPole-v1", "graph/Pendulum-v1"):
        assert name in ids
        describe(name)


def test_list_envs_says_what_is_to_be_installed(sherd: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "Box2D" else found(name, *rest)
    )
    lines = {line.split()[0]: line for line in sherd("list envs").out.splitlines()}
    assert lines["LunarLander-v3"].endswith("host: Gymnasium; needs sherd[box2d]")
    assert lines["CartPole-v1"].endswith("host: Gymnasium")


def test_check_env(sherd: Command) -> None:
    sound = sherd("check-env mine:Plain --steps 50")
    assert (sound.code, sound.err) == (0, "")
    assert "nothing wrong" in sound.out
    broken = sherd("check-env mine:NanReward --steps 50")
    assert broken.code == 1
    assert "nan" in broken.out.lower()
    assert "fix: " in broken.out


def test_graph_prints_the_iteration(sherd: Command) -> None:
    outcome = sherd("graph ppo CartPole-v1 --envs 4 --algo.horizon 16")
    assert outcome.code == 0
    assert outcome.out.startswith("graph PPO on CartPole-v1 (host), 4 environments, 64 steps per iteration\n")
    assert "fragment" not in outcome.out


def test_graph_prints_how_a_policy_cuts_it(sherd: Command) -> None:
    own = sherd("graph ppo CartPole-v1 --policy mine:Everything --policy.copies 3")
    assert own.out.startswith("cut Everything(copies=3)\nof  PPO on CartPole-v1 (host), 8 environments")
    assert "fragment whole x 1, learner\n" in own.out
    fine = sherd("graph ppo CartPole-v1 --policy SingleLearnerFine --policy.actors 4 --envs 12")
    assert "fragment actors x 4, environment\n" in fine.out
    assert "message learner>actors#1: scatter 1 to 4, every turn of steps\n" in fine.out
    assert "\nprogram learner\ngraph PPO/learner on CartPole-v1" in fine.out


def test_graph_refuses_a_cut_that_cannot_be(sherd: Command) -> None:
    outcome = sherd("graph ppo CartPole-v1 --policy SingleLearnerFine --policy.actors 3")
    assert outcome.code != 0
    assert "8 environments cannot be shared evenly by 3 actors" in outcome.err
    assert outcome.out == ""


def test_graph_draws(sherd: Command, home: Path) -> None:
    pytest.importorskip("sherd.graph.draw")
    outcome = sherd("graph ppo CartPole-v1 --svg graph.svg")
    assert (outcome.code, outcome.out) == (0, "drawn to graph.svg\n")
    assert "<svg" in (home / "graph.svg").read_text()
    sherd("graph ppo CartPole-v1 --policy Central --policy.workers 4 --svg cut.svg")
    assert "workers \N{MULTIPLICATION SIGN} 4" in (home / "cut.svg").read_text()


def test_types_of_flags_reach_the_algorithm(sherd: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _watch_training(monkeypatch)
    sherd(
        "train --quiet --steps 77 --algo.hidden 128 128 ppo CartPole-v1 --algo.target-kl 0.01"
        " --algo.network gru --algo.no-anneal --algo.normalise-rewards --algo.share-torso True"
        " --algo.learning_rate 3e-4"
    )
    algorithm = seen["algorithm"]
    assert algorithm.hidden == (128, 128)
    assert algorithm.target_kl == 0.01
    assert algorithm.network == "gru"
    assert (algorithm.anneal, algorithm.normalise_rewards, algorithm.share_torso) == (False, True, True)
    assert algorithm.learning_rate == 3e-4
    assert (seen["steps"], seen["sinks"]) == (77, [])


def test_policy_name_and_policy_fields_go_together(sherd: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _watch_training(monkeypatch)
    sherd("train ppo graph/CartPole-v1 --policy.devices 1 --policy=Fused --quiet")
    assert (seen["policy"].name, seen["policy"].devices) == ("Fused", 1)
    sherd("train ppo CartPole-v1 --policy mine:Everything --policy.copies 3 --quiet")
    assert (seen["policy"].name, seen["policy"].copies) == ("Everything", 3)


def _watch_training(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Keep what the command would train, and train nothing."""
    seen: dict[str, Any] = {}

    def train(algorithm: Any, env: Any, policy: Any, sinks: Any, **config: Any) -> Any:
        seen.update(algorithm=algorithm, env=env, policy=policy, sinks=sinks, **config)
        raise KeyboardInterrupt

    monkeypatch.setattr("sherd.cli.train.train", train)
    return seen


def test_own_algorithm_environment_and_policy(sherd: Command, home: Path) -> None:
    chosen = "--policy mine:Everything --policy.copies 2 --algo.horizon 4"
    outcome = sherd(f"train mine:Tiny mine:Plain {chosen} {SMALL} --run-dir r --json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["steps"] == 64
    config = json.loads((home / "r" / "config.json").read_text())
    assert config["algorithm"] == {
        "name": "mine:Tiny", "horizon": 4, "learning_rate": 0.01, "poisoned_from": 1_000_000,
    }  # fmt: skip
    assert config["policy"] == {"name": "mine:Everything", "copies": 2}
    played = sherd("eval r --episodes 5 --json")
    assert played.code == 0, played.err
    assert json.loads(played.out) == {
        "run": "r", "episodes": 5, "return_mean": 5.0, "return_std": 0.0,
        "return_min": 5.0, "return_max": 5.0, "length_mean": 5.0,
    }  # fmt: skip
    assert "5 episodes" in sherd("eval r --episodes 5").out


def test_without_run_dir_nothing_is_written(sherd: Command, home: Path) -> None:
    before = sorted(path for path in home.rglob("*") if "__pycache__" not in path.parts)
    outcome = sherd(f"train mine:Tiny mine:Plain {SMALL}")
    assert outcome.code == 0
    assert "nothing was written to disk" in outcome.out
    assert "sherd graph mine:Tiny mine:Plain" in outcome.out
    assert "100%" in outcome.err
    assert sorted(path for path in home.rglob("*") if "__pycache__" not in path.parts) == before


def test_quiet_shows_no_progress(sherd: Command) -> None:
    outcome = sherd(f"train mine:Tiny mine:Plain {SMALL} --quiet")
    assert (outcome.code, outcome.err) == (0, "")
    assert "64 steps" in outcome.out


def test_json_without_any_episode_is_still_json(sherd: Command) -> None:
    outcome = sherd(
        "train mine:Tiny mine:Plain --steps 8 --envs 4 --algo.horizon 2 --eval-episodes 0 --json --quiet"
    )
    found = json.loads(outcome.out, parse_constant=lambda name: pytest.fail(f"not JSON: {name}"))
    assert found["episodes"] == 0
    assert found["return_mean"] is None


def test_our_warnings_are_shown_once_and_no_others(sherd: Command) -> None:
    outcome = sherd(f"train mine:Forgetful mine:Plain {SMALL} --quiet")
    assert outcome.code == 0
    assert outcome.err.startswith("sherd: warning: ")
    assert outcome.err.count("hyper-parameter 'momentum'") == 1
    assert outcome.err.count("sherd: ") == 1


def test_nan_loss_ends_the_run_and_keeps_the_last_good_parameters(sherd: Command, home: Path) -> None:
    outcome = sherd(
        f"train mine:Tiny mine:Plain --algo.poisoned-from 2 {SMALL} --algo.horizon 4 --run-dir bad"
    )
    assert outcome.code == 1
    assert "sherd: iteration 3: the loss or its gradient is not finite" in outcome.err
    assert "mine.py:" in outcome.err
    assert "`sherd check-env mine:Plain` looks for NaN in the observations" in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == ""
    kept = _params(home / "bad")
    assert np.isfinite(kept).all()
    sherd(f"train mine:Tiny mine:Plain {SMALL} --steps 32 --algo.horizon 4 --run-dir good --quiet")
    np.testing.assert_array_equal(kept, _params(home / "good"))
    assert np.abs(kept).max() > 0


def test_nan_reward_ends_the_run_and_keeps_finite_parameters(sherd: Command, home: Path) -> None:
    outcome = sherd("train mine:Tiny mine:NanReward --steps 128 --envs 2 --algo.horizon 8 --run-dir bad")
    assert outcome.code == 1
    assert (
        "sherd: iteration 4: environment 0 of mine:NanReward gave a reward that is not finite" in outcome.err
    )
    assert "kept in bad" in outcome.err
    assert "Traceback" not in outcome.err
    assert np.isfinite(_params(home / "bad")).all()
    rows = [json.loads(line) for line in (home / "bad" / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows][:3] == [1, 2, 3]


def _params(directory: Path) -> np.ndarray:
    with np.load(directory / "params.npz", allow_pickle=False) as saved:
        return np.concatenate([saved[name].ravel() for name in saved.files])


def test_flags_may_come_before_the_positional_arguments() -> None:
    before = "--json --algo.no-anneal --seed 3 --policy Fused --algo.hidden 64 64"
    line = f"{before} ppo --steps=7 graph/CartPole-v1 --envs 2"
    found, rest = take_positionals(line.split(), 2)
    assert found == ["ppo", "graph/CartPole-v1"]
    assert rest == [word for word in line.split() if word not in found]


@pytest.mark.parametrize("name", [".", "7", "runs/1"])
def test_a_run_may_have_any_name(name: str) -> None:
    assert take_positionals([name, "--episodes", "3"], 1) == ([name], ["--episodes", "3"])
    assert take_positionals(["--json", name, "--episodes", "3"], 1)[0] == [name]


def test_options_share_no_flag_with_the_run() -> None:
    import dataclasses

    from sherd.run import RunConfig

    names = [field.name for kind in (Options, RunConfig) for field in dataclasses.fields(kind)]
    assert len(names) == len(set(names))


def test_the_summary_repeats_what_was_chosen_and_says_what_its_speed_includes() -> None:
    from types import SimpleNamespace

    from sherd.cli.train import summarise
    from sherd.run import RunConfig

    summary = {"steps": 64, "seconds": 2.0, "steady_steps_per_second": 32.0}
    summary |= {"interrupted": False, "return_mean": None}
    run = SimpleNamespace(summary=summary, config=RunConfig(envs=4), metrics={"steps": [64]})
    text = summarise(run, "ppo", "CartPole-v1", "", hints=True)  # type: ignore[arg-type]
    assert "sherd graph ppo CartPole-v1 --envs 4" in text
    assert "compiling included" in text
    run.metrics["steps"] = [64, 128]
    assert "once compiled" in summarise(run, "ppo", "CartPole-v1", "", hints=True)  # type: ignore[arg-type]
    run.metrics, run.summary = {}, summary | {"steps": 0, "interrupted": True}
    first = summarise(run, "ppo", "CartPole-v1", "", hints=True).splitlines()[0]  # type: ignore[arg-type]
    assert first == "interrupted: 0 steps in 2.0 s"


def test_a_script_beside_a_clone_imports_the_package(tmp_path: Path) -> None:
    """A clone is a directory called sherd, without an __init__.py: it must not be what is imported."""
    (tmp_path / "sherd").mkdir()
    (tmp_path / "five.py").write_text("import sherd; print(sherd.__version__)")
    done = subprocess.run(
        [sys.executable, "five.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
