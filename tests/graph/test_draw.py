"""The drawing: well formed, complete, and nothing on top of anything else."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import graphs
import pytest
from graphs import without_lines

from sherd.graph.draw import draw
from sherd.graph.draw_layout import LETTER, lay_out
from sherd.graph.draw_model import boxes, diagram, frames
from sherd.graph.ir import Ref, Scope, walk

IMAGE = Path(__file__).parents[2] / "docs" / "images" / "ppo-graph.svg"
GRAPHS = [graphs.feed_forward, graphs.recurrent, graphs.replaying]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(params=GRAPHS, ids=lambda make: make.__name__)
def graph(request):
    return request.param()


def texts(svg):
    """Every piece of text: where it begins, its size, its width, what it says."""
    found = []
    for element in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        size, text = float(element.get("font-size", "11")), element.text or ""
        bold = 1.15 if element.get("font-weight") else 1
        letter = 5.6 * bold if "sans" in element.get("font-family", "") else LETTER
        width = len(text) * letter * size / 11
        found.append((float(element.get("x")), float(element.get("y")), size, width, text))
    return found


def test_is_well_formed_and_needs_nothing_from_elsewhere(graph):
    svg = draw(graph)
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert not re.search(r"href|url\(|<script|<style", svg)
    assert not re.search(r'[ "]-?(nan|inf)', svg)


def test_is_the_same_every_time(graph):
    assert draw(graph) == draw(graph)


def test_shows_every_node_scope_and_cell(graph):
    said = [text for *_, text in texts(draw(graph))]
    for node in graph.nodes():
        assert node.name in said
        assert str(node.source) in said
        assert any(text.startswith(f"%{node.output}  {node.role}") for text in said)
    for item in graph.root.body:
        if isinstance(item, Scope):
            assert f"{item.name} \N{MULTIPLICATION SIGN} {item.trips}" in said
    for cell in graph.cells:
        assert cell.name in said or any(t.startswith("empty state") and cell.name in t for t in said)
    for role in {node.role for node in graph.nodes()}:
        assert role in said  # the legend


def test_no_text_overlaps_another(graph):
    placed = []
    for x, y, size, width, text in texts(draw(graph)):
        placed.append((x, y - 0.75 * size, x + width, y + 0.2 * size, text))
    for index, (left, top, right, bottom, text) in enumerate(placed):
        for other_left, other_top, other_right, other_bottom, other in placed[:index]:
            apart = right <= other_left or other_right <= left or bottom <= other_top or other_bottom <= top
            assert apart, f"{text!r} is over {other!r}"


def test_texts_stay_in_the_picture_and_in_their_boxes(graph):
    svg = draw(graph)
    width, height = (float(word) for word in re.search(r'viewBox="0 0 (\d+) (\d+)"', svg).groups())
    for x, y, _, length, _ in texts(svg):
        assert x >= 0
        assert y <= height
        assert x + length <= width
    layout = lay_out(diagram(graph))
    for box in [*layout.diagram.cells, *boxes(layout.diagram.root)]:
        for row in box.rows:
            assert (len(row.left) + len(row.right)) * LETTER + 20 <= layout.width
            assert box.y < row.y < box.y + box.height


def test_boxes_and_frames_nest(graph):
    layout = lay_out(diagram(graph))
    ends = 0.0
    for box in [*layout.diagram.cells, *boxes(layout.diagram.root)]:
        assert box.y >= ends
        ends = box.y + box.height
    for frame in frames(layout.diagram.root):
        for item in frame.items:
            assert frame.y < item.y
            assert item.y + item.height < frame.y + frame.height
            assert getattr(item, "right", layout.left + layout.width) < frame.right


def test_wires_that_share_a_lane_do_not_meet(graph):
    lanes: dict[float, list[tuple[float, float]]] = {}
    wires = lay_out(diagram(graph)).wires
    assert wires
    for wire in wires:
        low, high = wire.span()
        for other_low, other_high in lanes.setdefault(wire.lane, []):
            assert high < other_low or other_high < low
        lanes[wire.lane].append((low, high))


def drawn_uses(graph):
    """How often each net ends in a box."""
    rows = [row for box in boxes(diagram(graph).root) for row in box.rows]
    return {row.net for row in rows if row.net is not None and not row.net_out}


def test_every_use_of_a_nodes_value_is_drawn(graph):
    ends = {net[0] for net in drawn_uses(graph)}
    made = {node.output for node in graph.nodes()}
    for node in graph.nodes():
        for leaf in node.inputs:
            if isinstance(leaf, Ref) and leaf.value in made:
                assert leaf.value in ends, node.name
    joined = {wire.net for wire in lay_out(diagram(graph)).wires}
    assert joined == drawn_uses(graph)


def test_state_is_read_and_written_where_the_program_does():
    shown = diagram(graphs.recurrent())
    ties = {}
    for box in boxes(shown.root):
        reads = {row.left for row in box.rows if row.cell and not row.cell_out}
        writes = {row.cell for row in box.rows if row.cell and row.cell_out}
        ties[box.title] = (reads, writes)
    assert ties["explore"] == ({"learner.params", "scales", "env.obs, .first", "memory"}, {"memory"})
    assert ties["step"] == ({"env"}, {"env"})
    # The memory with which the rollout began, not the one that it ended with.
    assert ties["prepare"] == (
        {"learner.params", "scales", "discounted", "memory before steps"},
        {"scales", "discounted"},
    )
    assert ties["update"] == ({"learner", "iteration"}, {"learner"})
    carried = {frame.title.split(" ")[0]: frame.carried for frame in frames(shown.root)}
    assert carried["steps"] == ["env", "memory"]
    assert carried["epochs"] == carried["minibatches"] == ["learner"]
    assert carried["one"] == ["env", "learner", "memory", "scales", "discounted"]


def test_a_write_without_a_node_is_drawn_at_the_end():
    last = list(boxes(diagram(graphs.replaying()).root))[-1]
    assert last.title == "end of the iteration"
    assert [(row.left, row.cell, row.cell_out) for row in last.rows[:2]] == [
        ("learner.params", "learner", False),
        ("next target", "target", True),
    ]
    assert last.rows[-1].left == "report metrics from count before bump"


def test_what_a_scope_starts_from_is_drawn():
    """A cell that is rewritten before a loop carries it: by a node, or without one."""
    graph = graphs.recurrent()
    rate = next(node for node in walk(graph.root) if node.name == "rate").output

    def starting(initial):
        def body(item):
            if not isinstance(item, Scope) or item.name != "epochs":
                return item
            return replace(item, carries=(replace(item.carries[0], initial=initial),))

        root = replace(graph.root, body=tuple(body(item) for item in graph.root.body))
        return [*boxes(diagram(replace(graph, root=root)).root)]

    by_node = next(box for box in starting(Ref(rate)) if box.title == "rate")
    assert [row.cell for row in by_node.rows if row.cell_out] == ["learner"]
    env = next(carry.outer for carry in graph.root.body[0].carries if carry.cell == "env")
    without = next(box for box in starting(Ref(env)) if box.title == "before epochs")
    assert [(row.left, row.cell_out) for row in without.rows] == [("env", False), ("next learner", True)]


def test_text_is_escaped():
    graph = replace(graphs.feed_forward(), name="<b>&'\"")
    svg = draw(graph)
    assert "<b>" not in svg
    assert "<b>&'\" on CartPole-v1" in {text for *_, text in texts(svg)}


def test_the_picture_in_the_docs_is_current():
    """To redraw it: sherd graph ppo CartPole-v1 --svg docs/images/ppo-graph.svg"""
    drawn = without_lines(draw(graphs.feed_forward()))
    strip = r'x="[\d.]+"'  # a line number of another length moves what is set flush right
    assert re.sub(strip, "", without_lines(IMAGE.read_text(encoding="utf-8"))) == re.sub(strip, "", drawn)
