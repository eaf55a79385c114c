"""Break PPO's graph in every way that `check` knows, and read what it says."""

import re
from dataclasses import replace
from pathlib import Path

import graphs
import pytest
from graphs import without_lines

from sherd.errors import UsageError
from sherd.graph import check
from sherd.graph.ir import Ref, Scope


def edit(graph, name, change):
    """The graph with one node or scope replaced by `change(it)`, which may be several items."""

    def body(scope):
        items = []
        for item in scope.body:
            if item.name == name:
                changed = change(item)
                items += changed if isinstance(changed, list) else [changed]
            else:
                items.append(replace(item, body=body(item)) if isinstance(item, Scope) else item)
        return tuple(items)

    return replace(graph, root=replace(graph.root, body=body(graph.root)))


def node(graph, name):
    return next(node for node in graph.nodes() if node.name == name)


def refused(graph, source="ppo.py"):
    with pytest.raises(UsageError) as caught:
        check(graph)
    message = str(caught.value)
    assert message.startswith("ill-formed graph of PPO: ")
    # The line of the author's code, quoted in full, and a way out.
    assert re.search(rf"\n  at \S+{source}:\d+\n    \S", message), message
    assert re.search(r"\n  fix: \S", message)
    return message


@pytest.fixture
def graph():
    return graphs.feed_forward()


def marked(message):
    """The line that the message points at, and those around it."""
    lines = message.split("\n")
    at = next(index for index, line in enumerate(lines) if line.startswith("  > "))
    return lines[at], lines[at - 1], lines[at + 1]


@pytest.mark.parametrize("make", [graphs.feed_forward, graphs.recurrent, graphs.replaying])
def test_good_graphs_pass(make):
    assert check(make()) is make()


def test_use_before_definition(graph):
    later = node(graph, "rate").output
    broken = edit(graph, "prepare", lambda n: replace(n, inputs=(Ref(later), *n.inputs[1:])))
    message = refused(broken)
    assert f"'prepare' uses %{later} (rate) before it is defined" in message
    offender, before, after = marked(message)
    assert "prepare(%19:rate" in offender
    assert "scope steps x 128" in before
    assert "progress(" in after
    assert "self.prepare(" in message


def test_a_value_of_an_inner_scope_used_outside(graph):
    inner = node(graph, "explore").output
    broken = edit(graph, "prepare", lambda n: replace(n, inputs=(Ref(inner), *n.inputs[1:])))
    message = refused(broken)
    assert f"'prepare' uses %{inner} (explore) outside the loop that defines it" in message
    assert "env.rollout" in message.split("fix: ")[1]


def test_the_end_of_a_turn_uses_what_is_not_there(graph):
    far = node(graph, "update").output

    def change(scope):
        return replace(scope, carries=(replace(scope.carries[0], result=Ref(far)), *scope.carries[1:]))

    message = refused(edit(graph, "steps", change))
    assert f"the end of 'steps' uses %{far} (update)" in message
    assert f"  > next   env = %{far}:update" in message
    assert "step(%9:env" in message


def test_a_value_defined_twice(graph):
    broken = edit(graph, "rate", lambda n: replace(n, output=node(graph, "progress").output))
    message = refused(broken)
    assert "(progress) is defined twice" in message
    assert "rate(" in marked(message)[0]
    assert "progress(" in marked(message)[1]


def test_a_value_defined_twice_in_loops_that_do_not_see_each_other(graph):
    other = node(graph, "explore").output
    broken = edit(graph, "shuffle", lambda n: replace(n, output=other))
    assert f"%{other} (explore) is defined twice" in refused(broken)


def test_a_value_without_a_type(graph):
    output = node(graph, "rate").output
    values = {number: value for number, value in graph.values.items() if number != output}
    message = refused(replace(graph, values=values))
    assert f"value %{output} has no type" in message
    assert "rate(" in marked(message)[0]


def test_an_unknown_role(graph):
    broken = edit(graph, "loss", lambda n: replace(n, op=replace(n.op, role="gard")))
    message = refused(broken)
    assert "node 'loss' has the unknown role 'gard'" in message
    assert "did you mean 'grad'?" in message
    assert "minibatch(" in marked(message)[1]
    assert "update(" in marked(message)[2]


def test_a_carry_that_leaves_with_another_type(graph):
    def change(scope):
        wrong = Ref(node(graph, "step").output, (("item", 2),))
        return replace(scope, carries=(replace(scope.carries[0], result=wrong), *scope.carries[1:]))

    message = refused(edit(graph, "steps", change))
    assert "cell 'env' holds EnvState(" in message
    assert "but next env is Episode(" in message
    assert "  > next   env = %12:step[2]" in message
    assert "for _ in env.steps(" in message


def test_a_carry_that_enters_with_another_type(graph):
    def change(scope):
        wrong = replace(scope.carries[0], initial=Ref(node(graph, "rate").output))
        return replace(scope, carries=(wrong,))

    message = refused(edit(graph, "epochs", change))
    assert "what enters 'epochs' as learner is float32[]" in message
    assert "scope epochs x 4" in marked(message)[0]
    assert "rate(" in marked(message)[1]


def test_a_carry_of_a_cell_that_does_not_exist(graph):
    def change(scope):
        return replace(scope, carries=(replace(scope.carries[0], cell="learne"), *scope.carries[1:]))

    message = refused(edit(graph, "epochs", change))
    assert "scope 'epochs' carries 'learne', which is no state cell" in message
    assert "did you mean 'learner'?" in message


def test_two_nodes_of_one_name(graph):
    broken = edit(graph, "rate", lambda n: replace(n, name="progress"))
    message = refused(broken)
    assert "two nodes are called 'progress', so they would share keys" in message
    assert "progress(%18" in marked(message)[0]


@pytest.mark.parametrize(
    "path", [(("attr", "nothing"),), (("item", 7),), (("item", 0), ("attr", "shape"), ("item", 9))]
)
def test_a_part_that_is_missing(graph, path):
    output = node(graph, "explore").output
    broken = edit(graph, "step", lambda n: replace(n, inputs=(n.inputs[0], Ref(output, path))))
    message = refused(broken)
    assert f"'step' uses the part {Ref(0, path).suffix()} of %{output} (explore)" in message
    assert "step(" in marked(message)[0]
    assert "explore(" in marked(message)[1]


@pytest.mark.parametrize("trips", [0, -1])
def test_a_bad_trip_count(graph, trips):
    message = refused(edit(graph, "minibatches", lambda s: replace(s, trips=trips)))
    assert f"scope 'minibatches' has a trip count of {trips}" in message
    assert "in scope 'minibatches'" in message
    assert "update(" in message


def test_a_stack_of_another_length(graph):
    message = refused(edit(graph, "minibatches", lambda s: replace(s, trips=5)))
    assert "'metrics' is stacked over 5 turns" in message
    assert "float32[4]" in message
    assert "  > stack  metrics = %27:update[1]" in message


def test_environment_axes_that_cannot_be(graph):
    output = node(graph, "rate").output
    value = replace(graph.values[output], env_axes=(0,))
    message = refused(replace(graph, values={**graph.values, output: value}))
    assert "(rate) has the environment axes (0,), which do not fit float32[]" in message


def test_cells_that_are_not_carried(graph):
    message = refused(replace(graph, cells=graph.cells[:-1]))
    assert "disagree about discounted" in message
    twice = replace(graph, cells=(*graph.cells, graph.cells[0]))
    assert "disagree about env" in refused(twice)


def test_a_loop_that_never_steps(graph):
    idle = replace(node(graph, "rate"), inputs=(Ref(graph.iteration),))
    carries = [replace(c, result=Ref(c.inner)) for c in graph.root.carries]
    root = replace(graph.root, body=(idle,), carries=tuple(carries), stacks=())
    message = refused(replace(graph, root=root))
    assert "the loop of PPO never steps the environment" in message
    assert "rate(" in message
    assert "def loop(" in message


def test_a_graph_that_refers_to_nothing_still_prints(graph):
    """A broken graph still prints: `check` must show it, not trip over it."""
    broken = edit(graph, "rate", lambda n: replace(n, inputs=(Ref(999), Ref(998, (("item", 3),)))))
    message = refused(broken)
    assert "rate(%999, %998[3])" in message


def test_the_example_of_the_docs_is_the_real_message(graph):
    inner = node(graph, "explore").output
    broken = edit(graph, "prepare", lambda n: replace(n, inputs=(Ref(inner), *n.inputs[1:])))
    message = re.sub(r"at \S+(sherd/algorithms)", r"at \1", refused(broken))
    docs = Path(__file__).parents[2] / "docs" / "graph.md"
    assert f"```text\n{without_lines(message)}\n```" in without_lines(docs.read_text(encoding="utf-8"))
