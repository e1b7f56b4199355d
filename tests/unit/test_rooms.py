"""Rooms of `llmsys_exp` import downwards: commands know everything, and nothing knows commands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "llmsys_exp"
FLOORS = [
    ["errors", "runs.files"],
    ["config", "inputs"],
    [
        *("plan", "launch", "runs", "evidence"),
        *("calibrate.apply", "calibrate.device", "calibrate.entry", "calibrate.store"),
    ],
    ["jobs", "sweeps", "importers", "reproduce", "calibrate", "dryrun"],
    ["browse", "compare", "doctor"],
    ["cli"],
]
"""From the ground up; a room knows those of its own floor and of all below."""
EVERYWHERE = {"workers": 2, "report": 3}
"""Rooms that every floor may use, and how far up they themselves may look."""


def floor_of(module: str) -> int | None:
    """Return the floor of a module without the package's name; None where all may use it."""
    for floor, rooms in enumerate(FLOORS):
        if any(module == room or module.startswith(f"{room}.") for room in rooms if "." in room):
            return floor
    room = module.partition(".")[0]
    return next((floor for floor, rooms in enumerate(FLOORS) if room in rooms), None)


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield what a file imports when it runs; names of types alone do not count."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            yield from [name.name for name in node.names]
        else:
            yield from imports(node)


def test_no_room_knows_one_above_it():
    upward: list[str] = []
    seen: set[str] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        if len(relative.parts) == 1 or "_shipped" in relative.parts:
            continue
        room = relative.parts[0]
        own = floor_of(".".join(relative.with_suffix("").parts))
        top = EVERYWHERE.get(room) if own is None else own
        assert top is not None, f"{room} stands on no floor"
        seen.add(room)
        for name in imports(ast.parse(path.read_text(encoding="utf-8"))):
            module = name.removeprefix("llmsys_exp.")
            floor = floor_of(module) if module != name else None
            if floor is not None and floor > top:
                upward.append(f"{relative} imports {module}")
    assert not upward, "\n".join(upward)
    assert {"cli", "sweeps", "plan", "config", "report", "workers"} <= seen


def test_upward_import_is_seen_wherever_it_stands():
    source = "if TYPE_CHECKING:\n    from llmsys_exp.cli.plan import a\ndef f():\n    from llmsys_exp.cli.plan import b\n"
    assert list(imports(ast.parse(source))) == ["llmsys_exp.cli.plan.b"]
    assert floor_of("cli.plan.b") == 5 and floor_of("runs.files.read") == 0 and floor_of("runs.paths") == 2
