"""The text of a graph: goldens, and what must hold of any.

To accept a changed format: SHERD_UPDATE_GOLDENS=1 pytest tests/graph/test_text.py
"""

import linecache
import os
import re
from pathlib import Path

import graphs
import jax
import pytest
from graphs import without_lines

from sherd.graph.check import ROLES
from sherd.graph.notation import render_type, wrap
from sherd.graph.text import render

GOLDEN = Path(__file__).parent / "golden"
DOCS = Path(__file__).parents[2] / "docs" / "graph.md"
UPDATE = bool(os.environ.get("SHERD_UPDATE_GOLDENS"))
STATEMENTS = {
    "graph",
    "given",
    "state",
    "empty",
    "loop",
    "scope",
    "next",
    "stack",
    "leaves",
    "report",
    *ROLES,
}
GRAPHS = {
    "ppo_cartpole": graphs.feed_forward,
    "ppo_gru_pendulum": graphs.recurrent,
    "replay_cartpole": graphs.replaying,
}


@pytest.fixture(params=GRAPHS)
def name(request):
    return request.param


def test_text_is_as_agreed(name):
    text = without_lines(str(GRAPHS[name]()))
    file = GOLDEN / f"{name}.txt"
    if UPDATE:
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_text_is_the_same_every_time(name):
    graph = GRAPHS[name]()
    assert render(graph) == render(graph)


def statements(text):
    """Each statement in one line, with its indentation."""
    found: list[tuple[int, str]] = []
    for line in text.splitlines():
        code = line.split("  #")[0].strip()
        if code.split(" ")[0] in STATEMENTS:
            found.append((len(line) - len(line.lstrip()), code))
        elif code:
            found[-1] = (found[-1][0], f"{found[-1][1]} {code}")
    return found


def definitions(code):
    """The values that a statement defines."""
    word = code.split(" ")[0]
    if word in ("given", "state", "leaves"):
        return re.findall(r"%\d+", code.split(" : ")[0])
    if word == "scope":
        return [one or other for one, other in re.findall(r"turn (%\d+)|(%\d+):\w+ from", code)]
    return re.findall(r"^\w+ +(%\d+) = ", code)


def test_every_value_is_defined_before_it_is_used(name):
    """In reading order, and only where the indentation says that the definition can be seen."""
    visible: dict[str, int] = {}
    uses = 0
    for indent, code in statements(str(GRAPHS[name]())):
        visible = {value: depth for value, depth in visible.items() if depth <= indent}
        new = definitions(code)
        for used in set(re.findall(r"%\d+", code)) - set(new):
            assert used in visible, f"{used} is not defined where it is used: {code}"
            uses += 1
        assert not set(new) & set(visible), f"defined twice: {code}"
        visible.update(dict.fromkeys(new, indent + 2 if code.startswith("scope") else indent))
    assert uses > 20


def test_lines_of_source_are_the_authors():
    wanted = {
        "explore": "self.explore(",
        "step": "env.step(action, choice)",
        "prepare": "self.prepare(",
        "rate": "self.rate(learner.progress)",
        "shuffle": "learner.shuffled(",
        "loss": "learner.step(self.loss",
        "update": "learner.step(self.loss",
    }
    graph = graphs.feed_forward()
    nodes = {node.name: node for node in graph.nodes()}
    for node, text in wanted.items():
        source = nodes[node].source
        assert text in linecache.getline(source.file, source.line), node
        printed = next(line for line in str(graph).splitlines() if f"= {node}(" in line)
        assert printed.endswith(f"# ppo.py:{source.line}")
    steps = next(line for line in str(graph).splitlines() if "scope steps" in line)
    number = int(steps.rsplit(":", 1)[1])
    assert "for _ in env.steps(self.horizon)" in linecache.getline(graph.root.source.file, number)


def test_lines_fit_a_page(name):
    for line in str(GRAPHS[name]()).splitlines():
        assert len(line) <= 110
        assert len(line.split("#")[0].rstrip()) <= 91
        assert line == line.rstrip()


def test_empty_state_is_named_once_and_then_left_out():
    text = str(graphs.feed_forward())
    assert "empty  memory\n" in text
    assert text.count("memory") == 1
    assert "empty" not in str(graphs.recurrent())


def test_the_environment_axis_is_marked_wherever_it_is():
    text = str(graphs.recurrent())
    assert "f32[8e,3]" in text  # one step
    assert "f32[128,8e,3]" in text  # a rollout
    assert "f32[4,128,2e,3]" in text  # dealt into minibatches of whole environments
    assert "mean, var f32[3]" in text  # statistics have none


def test_types_of_cells_are_not_repeated():
    text = str(graphs.recurrent())
    assert "[0] like env" in text
    assert "[1] like scales" in text
    assert text.count("optimiser") == 1


def array(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


@pytest.mark.parametrize(
    ("type_", "axes", "text"),
    [
        (array(), -1, "f32[]"),
        (array(2, 8), 1, "f32[2,8e]"),
        ((), (), "()"),
        ((array(1),), (-1,), "(f32[1],)"),
        ({"a": array(1), "b": array(2)}, {"a": -1, "b": 0}, "{a f32[1], b f32[2e]}"),
        ({"a": {f"b{i}": {"c": array(2)} for i in range(10)}}, None, "<10 arrays, 20 numbers>"),
        ({f"m{i}": array() for i in range(12)}, {f"m{i}": -1 for i in range(12)}, None),
    ],
)
def test_types(type_, axes, text):
    if text is None:
        text = "{" + ", ".join(f"m{i}" for i in range(12)) + " f32[]}"
    assert render_type(type_, axes) == text


def test_wrapping_loses_nothing():
    text = str(graphs.recurrent()).replace("\n", " ")
    for width in (10, 40, 80):
        lines = wrap(text, "  ", width)
        assert len(lines) > 5
        assert " ".join(line.removeprefix("  ") for line in lines[1:]) == text[len(lines[0]) + 1 :]


def test_the_example_of_the_docs_is_the_real_output():
    text = without_lines(DOCS.read_text(encoding="utf-8"))
    assert f"```text\n{without_lines(str(graphs.feed_forward()))}```" in text
