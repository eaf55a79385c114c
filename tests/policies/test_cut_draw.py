"""The drawing of a cut: well formed, complete, and nothing on top of anything else."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import graphs
import pytest
from graphs import without_lines

from sherd.optimise import optimise
from sherd.policies import BUILT_IN
from sherd.policies.draw import draw_cut
from sherd.policies.draw_layout import lay_out
from sherd.policies.partition import partition
from sherd.policies.traffic import size, traffic

IMAGE = Path(__file__).parents[2] / "docs" / "images" / "ppo-fragments.svg"
SVG = "{http://www.w3.org/2000/svg}"
MANY = {"actors": 4, "policies": 2, "learners": 2, "workers": 4}
GRAPHS = {"plain": graphs.feed_forward, "recurrent": graphs.recurrent, "replay": graphs.replaying}


@pytest.fixture(params=[name for name in BUILT_IN if name != "Fused"])
def policy(request):
    chosen = BUILT_IN[request.param]
    return chosen(**{name: count for name, count in MANY.items() if name in chosen.__annotations__})


@pytest.fixture(params=GRAPHS)
def cut(request, policy):
    return optimise(partition(GRAPHS[request.param](), policy))


def texts(svg):
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_is_well_formed_and_the_same_every_time(cut):
    svg = draw_cut(cut)
    assert not re.search(r"href|url\(|<script|<style", svg)
    assert not re.search(r'[ "]-?(nan|inf)', svg)
    assert svg == draw_cut(cut)


def test_shows_every_fragment_node_and_message(cut):
    said = texts(draw_cut(cut))
    for fragment in cut.fragments:
        assert f"{fragment.name} \N{MULTIPLICATION SIGN} {fragment.replicas}" in said
    for node in cut.graph.nodes():
        assert node.name in said
    assert len(lay_out(cut).marks) == len(list(cut.graph.nodes())) + len(traffic(cut)) - len(cut.crossings)
    for one in traffic(cut):
        amount = f"{size(one.size)} \N{MULTIPLICATION SIGN} {one.times}"
        assert any(
            one.how in text or f"all {cut[one.source].replicas}" in text for text in said if amount in text
        )


def test_arrows_have_rows_of_their_own(cut):
    layout = lay_out(cut)
    assert len(layout.arrows) == len(cut.crossings)
    rows = [(mark.y, mark.y + 24) for mark in layout.marks]
    rows += [(arrow.y - 17, arrow.y + 17 * len(arrow.below)) for arrow in layout.arrows]
    rows.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(rows))


def test_texts_stay_within_their_place(cut):
    layout = lay_out(cut)
    columns = list(layout.columns.values())
    for one, other in pairwise(columns):
        assert one.x + one.width < other.x
    for arrow in layout.arrows:
        edges = (arrow.source, arrow.target)
        between = abs(columns.index(edges[0]) - columns.index(edges[1])) == 1
        gap = max(c.x for c in edges) - min(c.x + c.width for c in edges)
        assert not between or arrow.words() + 20 < gap
    assert layout.right >= columns[-1].x + columns[-1].width


def test_the_image_of_the_docs_is_the_real_drawing():
    fine = optimise(partition(graphs.feed_forward(), BUILT_IN["SingleLearnerFine"](actors=4)))
    assert without_lines(IMAGE.read_text(encoding="utf-8")) == without_lines(draw_cut(fine))


def test_a_pile_is_drawn_for_replicas():
    graph = graphs.feed_forward()
    one = draw_cut(partition(graph, BUILT_IN["MultiLearner"](learners=1)))
    two = draw_cut(partition(graph, BUILT_IN["MultiLearner"](learners=2)))
    assert two.count('rx="9"') == one.count('rx="9"') + 1
