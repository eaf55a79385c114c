"""The rooms of the house: imports run downhill, and optional packages are imported in one file each."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "sherd"

# A room may import only rooms above it in this list (DESIGN: rooms).
ROOMS = [
    "errors",
    "imports",
    "caches",
    "spaces",
    "envs",
    "author",
    "nn",
    "algorithms",
    "graph",
    "policies",
    "optimise",
    "plan",
    "lower",
    "runtime",
    "executors",
    "run",
    "cli",
    "dashboard",
]
OPTIONAL = {"ale_py", "mujoco", "envpool", "minatar", "gymnax", "brax", "tensorboardX", "ray", "wandb"}
PUBLIC = ("sherd/__init__.py", "sherd/__main__.py")


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imported(file: Path) -> list[tuple[str, int]]:
    """Every module that a file imports anywhere in it, with its line."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [(name.name, node.lineno) for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [(f"{node.module}.{name.name}", node.lineno) for name in node.names]
    return found


def room_of(module: str) -> str:
    return module.split(".")[1]


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_run_downhill(file):
    relative = file.relative_to(PACKAGE.parent)
    if str(relative) in PUBLIC:
        return
    room = relative.with_suffix("").parts[1]
    assert room in ROOMS, f"{relative} is in no known room"
    for module, line in imported(file):
        if module.startswith("sherd.") and room_of(module) in ROOMS:
            above = ROOMS.index(room_of(module)) <= ROOMS.index(room)
            assert above, f"{relative}:{line} ({room}) imports uphill: {module}"


def test_each_optional_package_has_one_home():
    homes: dict[str, set[str]] = {}
    for file in files():
        for module, _ in imported(file):
            package = module.split(".")[0]
            if package in OPTIONAL:
                homes.setdefault(package, set()).add(str(file.relative_to(PACKAGE)))
    crowded = {package: found for package, found in homes.items() if len(found) > 1}
    assert not crowded


def test_simulator_rooms_never_import_jax_at_the_top():
    for file in [
        *PACKAGE.glob("*.py"),
        *(PACKAGE / "envs").glob("*.py"),
        *(PACKAGE / "envs/host").glob("*.py"),
    ]:
        if file.name in ("run.py", "__main__.py"):
            continue
        for node in ast.parse(file.read_text()).body:
            names = [n.name for n in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] in ("jax", "flax", "optax") for name in names), file


def test_every_room_says_what_it_is():
    for folder in [path for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]:
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


def test_public_names_are_few_and_exist():
    import sherd

    assert len(sherd.__all__) <= 20
    for name in sherd.__all__:
        assert getattr(sherd, name) is not None


def test_no_bare_assert_and_no_pickle_in_shipped_code():
    for file in files():
        for node in ast.walk(ast.parse(file.read_text())):
            assert not isinstance(node, ast.Assert), f"{file}:{node.lineno}"
        assert "pickle" not in {module.split(".")[0] for module, _ in imported(file)}, file
