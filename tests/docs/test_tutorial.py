"""The tutorial's files learn, mean the same under three policies, and look as its page shows them."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from graphs import without_lines
from thorough import thorough

import sherd
from sherd.cli.main import main
from sherd.envs import describe
from sherd.graph.draw import draw
from sherd.imports import load_object

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "tutorial.md").read_text(encoding="utf-8")
FILES = ("evolution", "actor_critic")


@pytest.fixture(autouse=True)
def _among_the_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(DOCS / "examples"))


def learnt(name: str, env: str, flags: str, capsys: pytest.CaptureFixture[str]) -> dict[str, np.ndarray]:
    """The parameters after a few iterations."""
    run_dir = "runs/" + re.sub(r"\W+", "-", f"{env}{flags}")
    small = "--envs 8 --steps 640 --algo.horizon 16 --seed 1 --eval-episodes 0 --quiet --json"
    assert main(["train", name, env, "--run-dir", run_dir, *small.split(), *flags.split()]) == 0
    assert capsys.readouterr().err == ""
    with np.load(Path(run_dir) / "params.npz") as saved:
        return dict(saved)


# The page itself compares Evolution under Single and Fused.
@pytest.mark.parametrize(
    ("name", "env", "flags", "tolerance"),
    [
        pytest.param(
            "evolution:Evolution",
            "graph/CartPole-v1",
            "--policy MultiLearner --policy.learners 2",
            1e-6,
            marks=thorough,
        ),
        ("actor_critic:ActorCritic", "graph/CartPole-v1", "--policy Fused", 1e-6),
        pytest.param(
            "actor_critic:ActorCritic",
            "CartPole-v1",
            "--policy SingleLearnerCoarse --policy.actors 2",
            0,
            marks=thorough,
        ),
    ],
)
def test_a_policy_does_not_change_what_is_learnt(name, env, flags, tolerance, capsys):
    alone, apart = learnt(name, env, "", capsys), learnt(name, env, flags, capsys)
    for leaf, values in alone.items():
        assert np.abs(values).max() > 0
        np.testing.assert_allclose(apart[leaf], values, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "flags"),
    [("evolution:Evolution", "--envs 64 --steps 200000"), ("actor_critic:ActorCritic", "--steps 200000")],
)
def test_both_learn(name, flags, capsys):
    command = f"train {name} graph/CartPole-v1 --policy Fused {flags} --seed 1 --quiet --json"
    assert main(command.split()) == 0
    told = capsys.readouterr()
    assert told.err == ""
    # Untrained it is 20; how far one seed comes in so many steps depends on the processor's last bits.
    assert json.loads(told.out)["return_mean"] >= 200


def test_excerpts_are_parts_of_the_files():
    whole = "\n".join((DOCS / "examples" / f"{file}.py").read_text(encoding="utf-8") for file in FILES)
    excerpts = re.findall(r"^```python excerpt\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(excerpts) == 5
    for text in excerpts:
        assert textwrap.indent(text, "    ") in whole


def test_a_breakpoint_shows_what_the_page_shows(tmp_path, monkeypatch):
    (transcript,) = re.findall(r"^```text\n> evolution.py.*?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    asked = re.findall(r"^\(Pdb\) p (.+)\n(.+)$", transcript, re.MULTILINE)
    text = (DOCS / "examples" / "evolution.py").read_text(encoding="utf-8")
    head, line, rest = text.partition("        ended = rollout.terminated")
    (tmp_path / "halting.py").write_text(f"{head}        breakpoint()\n{line}{rest}", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    answers = []

    def look() -> None:
        frame = sys._getframe(1)
        answers.extend(repr(eval(question, frame.f_globals, frame.f_locals)) for question, _ in asked)

    monkeypatch.setattr(sys, "breakpointhook", look)
    sherd.debug(load_object("halting:Evolution")(horizon=5), "CartPole-v1", envs=4)
    assert answers == [answer for _, answer in asked] != []


def test_the_picture_is_the_real_drawing():
    """To redraw it: SHERD_UPDATE_DOCS=1 pytest tests/docs/test_tutorial.py"""
    graph = sherd.trace(load_object("evolution:Evolution")(), describe("CartPole-v1"), envs=64)
    picture, drawn = DOCS / "images" / "evolution-graph.svg", draw(graph)
    if os.environ.get("SHERD_UPDATE_DOCS"):
        picture.write_text(drawn, encoding="utf-8")
    assert without_lines(picture.read_text(encoding="utf-8")) == without_lines(drawn)
