"""The text of a cut: goldens, and what must hold of any.

To accept a changed format: SHERD_UPDATE_GOLDENS=1 pytest tests/policies/test_cut_text.py
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

import graphs
import pytest
from graphs import without_lines

import sherd
from sherd.algorithms.ppo import PPO
from sherd.envs import describe
from sherd.optimise import optimise
from sherd.policies import BUILT_IN
from sherd.policies.partition import partition
from sherd.policies.text import describe_policy, render

GOLDEN = Path(__file__).parent / "golden"
DOCS = Path(__file__).parents[2] / "docs" / "graph.md"
UPDATE = bool(os.environ.get("SHERD_UPDATE_GOLDENS"))
SETTINGS = {
    "SingleLearnerCoarse": {"actors": 4},
    "SingleLearnerFine": {"actors": 4},
    "MultiLearner": {"learners": 4},
    "Environments": {"actors": 4, "policies": 2, "learners": 2},
    "Central": {"workers": 4},
    "ReplayShards": {"actors": 4, "shards": 2},
}


@functools.cache
def cut_of(name):
    in_graph = name == "Fused"
    graph = sherd.trace(PPO(), describe("graph/CartPole-v1"), 8) if in_graph else graphs.feed_forward()
    if name == "ReplayShards":
        graph = graphs.replaying()
    return optimise(partition(graph, BUILT_IN[name](**SETTINGS.get(name, {}))))


@pytest.fixture(params=BUILT_IN)
def name(request):
    return request.param


def test_text_is_as_agreed(name):
    text = without_lines(render(cut_of(name)))
    file = GOLDEN / f"{name}.txt"
    if UPDATE:
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_printing_a_cut_is_its_text(name):
    assert str(cut_of(name)) == render(cut_of(name)) == render(cut_of(name))


def test_every_node_is_owned_by_one_fragment(name):
    head = render(cut_of(name)).split("\nprogram ")[0]
    listed = re.findall(r"^  nodes    (.*)$", head, re.MULTILINE)
    assert sorted(", ".join(listed).split(", ")) == sorted(node.name for node in cut_of(name).graph.nodes())


def test_every_message_is_sent_by_one_program_and_received_by_another(name):
    head, *programs = render(cut_of(name)).split("\nprogram ")
    for message in re.findall(r"^message (\S+):", head, re.MULTILINE):
        source, target = message.split("#")[0].split(">")
        sending = [p for p in programs if f"send   {message}(" in p]
        receiving = [p for p in programs if f" = {message}" in p]
        assert [p.split("\n")[0] for p in (*sending, *receiving)] == [source, target]


def test_totals_add_up():
    head = render(cut_of("SingleLearnerFine")).split("\nprogram ")[0]
    counts = [int(n.replace(",", "")) for n in re.findall(r" x ([\d,]+) = ", head)]
    assert f"total {sum(counts)} messages" in head
    assert (sum(counts), 32 * 128 + 136 * 128 + 22528) == (257, 44032)
    assert "44.0 kB per iteration" in head


def test_lines_fit_a_page(name):
    for line in render(cut_of(name)).splitlines():
        assert len(line) <= 110
        assert line == line.rstrip()


def test_the_example_of_the_docs_is_the_real_output():
    text = without_lines(DOCS.read_text(encoding="utf-8"))
    assert f"```text\n{without_lines(render(cut_of('SingleLearnerFine')))}```" in text


def test_settings_are_in_the_order_of_their_declaration():
    written = describe_policy(BUILT_IN["Environments"]())
    assert re.findall(r"(\w+)=", written) == [
        "actors",
        "policies",
        "learners",
        "asynchronous",
        "max_staleness",
        "ring",
    ]
    assert describe_policy(BUILT_IN["Single"]()) == "Single"
