"""The documentation is true: its code runs, its output is real, its commands parse, its links lead somewhere.

A fenced block says in its first line what is to be done with it:

    ```python            run, page by page, in one namespace
    ```python prints     run, and the next block is what it prints
    ```python raises     run, and the next block is the error's message
    ```python excerpt    not run: a part of something larger
    ```python file=...   the whole text of that file
    ```console           commands after `$` are parsed by the real command line, which then does nothing
    ```console runs      one command is run for real, and the rest of the block is what it prints

What lies between `<!-- name -->` and `<!-- /name -->` is generated. To write it anew:
SHERD_UPDATE_DOCS=1 pytest tests/docs
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import io
import json
import os
import re
import shlex
import sys
import textwrap
import tomllib
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import policy_pages
import pytest
from graphs import without_lines
from thorough import thorough

from sherd.algorithms import BUILT_IN as ALGORITHMS
from sherd.algorithms import load_algorithm
from sherd.cli import check_env, evaluate, graph, train
from sherd.cli.main import main
from sherd.envs import describe
from sherd.errors import SherdError
from sherd.policies import BUILT_IN
from sherd.runtime.events import METRICS, PROCESS_METRICS, metrics_reference

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = DOCS / "examples"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
UPDATE = bool(os.environ.get("SHERD_UPDATE_DOCS"))

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


# -- reading pages


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what to do with it, its text and the line on which that begins."""

    language: str
    mark: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    fences = re.finditer(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(m[1], m[2].strip(), m[3], text[: m.start(3)].count("\n") + 1) for m in fences]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[str]:
    """Every command that a page shows, continued lines joined."""
    shown = [b.text for b in blocks(page) if b.language == "console" and b.mark != "runs"]
    for text in shown:
        yield from re.findall(r"^\$ (.+)$", text.replace("\\\n", " "), re.MULTILINE)
    yield from re.findall(r"^    (sherd .+)$", prose(page), re.MULTILINE)


# -- code


@pytest.fixture
def author(tmp_path, monkeypatch):
    """A directory of one's own, where the examples can be imported, and `my_module:MyAlgorithm` too."""
    (tmp_path / "my_module.py").write_text("from reinforce import Reinforce as MyAlgorithm")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return tmp_path


def execute(block: Block, folder: Path, module: types.ModuleType) -> None:
    """Run a block from a file, so that messages can quote its lines."""
    file = folder / "example.py"
    file.write_text(block.text, encoding="utf-8")
    module.__file__ = str(file)
    exec(compile(block.text, str(file), "exec"), module.__dict__)


@each_page
def test_code_runs_and_prints_what_the_page_says(page, author, monkeypatch):
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)
    found = blocks(page)
    for position, block in enumerate(found):
        if block.language != "python" or block.mark == "excerpt" or block.mark.startswith("file="):
            continue
        folder = author / f"block{position}"
        folder.mkdir()
        printed, message = io.StringIO(), ""
        try:
            with contextlib.redirect_stdout(printed):
                execute(block, folder, module)
        except SherdError as error:
            if block.mark != "raises":
                raise
            message = str(error)
        if block.mark in ("prints", "raises"):
            given = message if block.mark == "raises" else printed.getvalue()
            told = given.replace(str(folder) + os.sep, "").replace(str(EXAMPLES) + os.sep, "")
            assert told.strip() == found[position + 1].text.strip(), f"{page.name}:{block.line}"


@each_page
def test_quoted_files_are_quoted_exactly(page):
    for block in blocks(page):
        if block.mark.startswith("file="):
            assert (page.parent / block.mark.removeprefix("file=")).read_text(encoding="utf-8") == block.text


# -- commands


class Accepted(BaseException):
    """A command line was understood; nothing is to be done about it."""


@pytest.fixture
def idle(monkeypatch):
    """The commands that take long stop where they would begin to work."""

    def accept(env: Any = None) -> None:
        if env is not None:
            describe(env)
        raise Accepted

    monkeypatch.setattr(train, "train", lambda algorithm, env, *rest, **config: accept(env))
    monkeypatch.setattr(train, "use_devices", lambda count: None)
    monkeypatch.setattr(evaluate, "evaluate", lambda *arguments: accept())
    monkeypatch.setattr(check_env, "check_env", lambda env, *rest: accept(env))
    monkeypatch.setattr(graph, "trace", lambda algorithm, spec, envs: accept())


def understood(line: str) -> bool:
    """Whether a command is one that exists, with flags that exist."""
    words = shlex.split(line, comments=True)
    if words[0] == "sherd":
        try:
            return main(words[1:]) == 0
        except Accepted:
            return True
        except SystemExit as ending:  # --help
            return not ending.code
    if words[0] == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return all(word in targets for word in words[1:])
    if words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = re.findall(r"\[(.+?)\]", line)
        return set(",".join(named).split(",")) - {""} <= set(extras)
    if words[0] == "python":
        return (ROOT / words[1]).is_file()
    return words[0] in ("git", "cd", "tensorboard")


@each_page
def test_commands_are_understood(page, author, idle, capsys):
    for line in commands(page):
        assert understood(line), f"{page.name}: {line}\n{capsys.readouterr().err}"


@each_page
def test_output_of_commands_is_real(page, author, capsys):
    for block in blocks(page):
        if block.language == "console" and block.mark == "runs":
            command, _, expected = block.text.partition("\n")
            main(shlex.split(command.removeprefix("$ "))[1:])
            told = capsys.readouterr()
            text = (told.out + told.err).replace(str(EXAMPLES) + os.sep, "")
            assert text.strip() == expected.strip(), f"{page.name}:{block.line}"


def test_a_run_can_be_trained_kept_and_evaluated(author, capsys):
    small = "--steps 64 --envs 4 --algo.horizon 8 --eval-episodes 2 --quiet"
    assert main(["train", "ppo", "CartPole-v1", "--run-dir", "runs/first", *small.split()]) == 0
    written = {re.sub(r"^events\..*", "events", file.name) for file in Path("runs/first").iterdir()}
    page = (DOCS / "getting-started.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `([\w.]+)", page.split("## What a run leaves")[1].split("##")[0], re.MULTILINE)
    assert {name.replace("events.out.tfevents.", "events") for name in table} == written
    rows = Path("runs/first/metrics.jsonl").read_text().splitlines()
    reported = set(METRICS) - set(PROCESS_METRICS)
    assert set(json.loads(rows[0])) == reported, "docs/metrics.md lists exactly what PPO reports"
    assert main(["eval", "runs/first", "--episodes", "2", "--quiet"]) == 0


# -- what is generated


def loop_of(algorithm: str) -> str:
    """The loop of an algorithm, without its annotations."""
    source = textwrap.dedent(inspect.getsource(load_algorithm(algorithm).loop))
    return "```python excerpt\n" + source.replace(": Any", "").replace(" -> None", "") + "```\n"


def parameters_of(algorithm: str) -> str:
    """An algorithm's hyper-parameters, from the strings below its fields."""
    return policy_pages.settings(load_algorithm(algorithm), "hyper-parameter")


GENERATED: dict[tuple[str, str], Callable[[], str]] = {
    ("README.md", "ppo-loop"): functools.partial(loop_of, "ppo"),
    ("docs/metrics.md", "metrics"): metrics_reference,
    ("docs/policies/README.md", "overview"): policy_pages.overview,
}
for algorithm in ALGORITHMS:
    algorithm_page = f"docs/algorithms/{algorithm}.md"
    GENERATED[algorithm_page, f"{algorithm}-loop"] = functools.partial(loop_of, algorithm)
    GENERATED[algorithm_page, f"{algorithm}-parameters"] = functools.partial(parameters_of, algorithm)
for policy, policy_class in BUILT_IN.items():
    policy_page = f"docs/policies/{policy_pages.page_name(policy)}.md"
    GENERATED[policy_page, "cut"] = functools.partial(policy_pages.cut_text, policy)
    if dataclasses.fields(policy_class):
        GENERATED[policy_page, "settings"] = functools.partial(policy_pages.settings, policy_class)


@pytest.mark.parametrize(("file", "name"), GENERATED)
def test_generated_parts_are_up_to_date(file, name):
    page, wanted = ROOT / file, GENERATED[file, name]()
    before, opening, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    present, closing, after = rest.partition(f"<!-- /{name} -->")
    assert opening, f"{file} has no place for {name}"
    assert closing, f"{file} does not say where {name} ends"
    if UPDATE:
        page.write_text(before + opening + wanted + closing + after, encoding="utf-8")
        return
    assert present == wanted


@pytest.mark.parametrize("name", BUILT_IN)
def test_pictures_of_policies_are_the_real_drawings(name):
    picture = DOCS / "images" / f"policy-{policy_pages.page_name(name)}.svg"
    drawn = policy_pages.cut_picture(name)
    if UPDATE:
        picture.write_text(drawn, encoding="utf-8")
    assert without_lines(picture.read_text(encoding="utf-8")) == without_lines(drawn)


@pytest.mark.parametrize("name", ["reinforce:Reinforce", "q_learning:QLearning"])
def test_examples_train_and_play_without_a_warning(name, author, capsys):
    small = "--steps 64 --envs 4 --algo.horizon 8 --eval-episodes 2 --quiet --json"
    more = "--algo.batch 16 --algo.capacity 64 --algo.warm-up 32" if "q_learning" in name else ""
    assert main(["train", name, "CartPole-v1", *small.split(), *more.split()]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert '"evaluated": true' in told.out


@thorough
def test_the_example_of_a_policy_means_the_same_in_processes(author, capsys):
    def learn(run_dir, flags):
        small = "--steps 128 --envs 4 --algo.horizon 16 --algo.hidden 16 --eval-episodes 0 --quiet --json"
        assert (
            main(["train", "ppo", "CartPole-v1", "--run-dir", run_dir, *small.split(), *flags.split()]) == 0
        )
        assert capsys.readouterr().err == ""
        with np.load(Path(run_dir) / "params.npz") as saved:
            return dict(saved)

    alone, apart = learn("alone", ""), learn("apart", "--policy pods:Pods --policy.learners 2")
    assert len(json.loads(Path("apart/processes.json").read_text())) == 4
    for leaf, values in alone.items():
        np.testing.assert_allclose(apart[leaf], values, atol=1e-6)


# -- links


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@each_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", prose(file), re.MULTILINE)
            assert anchor in map(slug, headings), f"{page.name} links to {target}"


@each_page
def test_pages_name_no_machine(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.~])/(home|root|tmp|work)/", text)
