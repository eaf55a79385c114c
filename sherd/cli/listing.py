"""`sherd list`: what there is. Algorithms and policies are read as text: importing them would load JAX."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sherd.cli.arguments import wants_help
from sherd.errors import UsageError, nearest

USAGE = "sherd list [algorithms|envs|policies]"
_PACKAGE = Path(__file__).parent.parent
_GYMNASIUM_EXTRAS = (
    ("gymnasium.envs.box2d", "Box2D", "box2d"),
    ("gymnasium.envs.mujoco", "mujoco", "mujoco"),
)
_OTHER_ENVS = {
    "gymnax/<name>": "gymnax's environments, pure JAX; needs sherd[graph-envs]",
    "brax/<name>": "Brax's environments, pure JAX; needs sherd[graph-envs]",
    "envpool/<id>": "EnvPool's simulators; needs sherd[envpool]",
    "my_module:MyEnv": "your own: a class or function that makes a gymnasium.Env or a graph environment",
}


def run(arguments: list[str]) -> int:
    """Run the command."""
    kinds = {
        "algorithms": lambda: built_in("algorithms"),
        "policies": lambda: built_in("policies"),
        "envs": environments,
    }
    if wants_help(arguments):
        print(f"usage: {USAGE}\n\nList what there is, a line each.")
        return 0
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        raise UsageError(f"unexpected argument {arguments[-1]!r}\n  usage: {USAGE}")
    for kind in arguments:
        if kind not in kinds:
            raise UsageError(f"cannot list {kind!r}: {nearest(kind, kinds)}\n  usage: {USAGE}")
    for kind in arguments or kinds:
        if not arguments:
            print(f"{kind}:")
        _print(kinds[kind](), indent="" if arguments else "  ")
    return 0


def _print(lines: dict[str, str], indent: str) -> None:
    width = max(map(len, lines))
    for name, text in lines.items():
        print(f"{indent}{name:<{width}}  {text}".rstrip())


def built_in(room: str) -> dict[str, str]:
    """The names in a room's BUILT_IN, each with the first line of its class's docstring.

    >>> built_in("policies")["Single"]
    'Everything in one process: a host loop around compiled regions.'
    """
    folder = _PACKAGE / room
    docs = {name: text for file in sorted(folder.glob("*.py")) for name, text in _classes(file)}
    return {name: docs.get(kind, "") for name, kind in _table(folder / "__init__.py").items()}


def _table(file: Path) -> dict[str, str]:
    """BUILT_IN's names and the classes they stand for.

    It is written as `{"ppo": "module:PPO"}`, or made of a tuple of classes under their own names.
    """
    assigned = {ast.unparse(target): value for target, value in _assignments(file)}
    table = assigned["BUILT_IN"]
    if isinstance(table, ast.DictComp):
        classes = assigned[ast.unparse(table.generators[0].iter)]
        names = [ast.unparse(item) for item in ast.iter_child_nodes(classes) if isinstance(item, ast.Name)]
        return {name: name for name in names}
    return {name: path.split(":")[-1] for name, path in ast.literal_eval(table).items()}


def _assignments(file: Path) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in _parsed(file).body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node.target, node.value
        elif isinstance(node, ast.Assign):
            yield node.targets[0], node.value


def _classes(file: Path) -> Iterator[tuple[str, str]]:
    for node in _parsed(file).body:
        if isinstance(node, ast.ClassDef):
            yield node.name, (ast.get_docstring(node) or "").partition("\n")[0]


def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _hidden(spec: Any) -> bool:
    """Listed apart (Atari), replaced by our own (JAX ports), or not to be made by an id."""
    return bool(spec.namespace) or str(spec.entry_point).startswith("ale_py") or spec.name.startswith("GymV")


def _needs(entry_point: str) -> str:
    """What to install for an environment of Gymnasium's, if it is not there."""
    for package, module, extra in _GYMNASIUM_EXTRAS:
        if entry_point.startswith(package) and importlib.util.find_spec(module) is None:
            return f"; needs sherd[{extra}]"
    return ""


def environments() -> dict[str, str]:
    """The ids of environments, and the patterns of those that other packages name."""
    import gymnasium

    from sherd.envs.graph import registry as graph_registry
    from sherd.envs.host import atari, minatar

    known = dict.fromkeys(graph_registry.names(), "graph: pure JAX, runs in the XLA program")
    games, small = atari.names(), minatar.names()
    # Newest versions only: the old ones stay for the sake of old results, and many need old packages.
    shown = [spec for spec in gymnasium.registry.values() if not _hidden(spec)]
    for spec in {spec.name: spec for spec in shown}.values():
        known[spec.id] = "host: Gymnasium" + _needs(str(spec.entry_point))
    known |= dict.fromkeys(games, "host: Atari, ALE's C++ vector environment")
    if not games:
        known["ALE/<game>-v5"] = "host: Atari; needs sherd[atari]"
    known |= dict.fromkeys(small, "host: MinAtar")
    if not small:
        known["MinAtar/<game>-v1"] = "host: MinAtar; needs sherd[minatar]"
    return known | _OTHER_ENVS
