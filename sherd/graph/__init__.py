"""The fragmented dataflow graph: `trace(algorithm, spec) -> Graph`, its text, drawing and checks.

In: an author's algorithm and an environment's spec. Out: a `Graph`, printable and testable by itself.
May import: errors, spaces, envs, author.
"""

from sherd.graph.check import check
from sherd.graph.ir import Graph
from sherd.graph.trace import trace, trace_again, trace_play

__all__ = ["Graph", "check", "trace", "trace_again", "trace_play"]
