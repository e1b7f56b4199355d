"""Writes docs/map.md from the first line of each module's docstring, so that the map cannot go stale.

python scripts/map.py           write it
python scripts/map.py --check   exit with 1 when it is not current
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAP = ROOT / "docs/map.md"
HEAD = """# Map

Where things are; one line a module, taken from the modules themselves (`python scripts/map.py`).

| folder | holds |
|---|---|
| `planner/` | what memory a job needs and which settings to choose; no torch, no Hydra, no network |
| `hydra_plugins/` | the Hydra launcher that leases; thin, the work is in `llmsys_exp/sweeps/launcher/` |
| `planner/data/` | tables: GPUs, model shapes, constants, measured runs; a source for each |
| `llmsys_exp/` | configuration, plan, inputs, jobs, launchers, run folders, reports, command line |
| `llmsys_exp/workers/` | the processes that train, merge and answer; only here are torch and its kin imported |
| `conf/` | Hydra groups |
| `experiments/` | shipped experiments and their data (`conf/experiment` is a link to it) |
| `benchmarks/` | measurements and their raw results |
| `tests/` | `unit`, `contract` (the command line), `golden` (measured memory), `integration` (real engines) |
| `scripts/`, `.ci/` | set-up and what CI runs |

How a run goes: `cli` → `config` (Hydra composes once) → `plan` (every `auto` filled in) → `jobs` (gate, run folder, pipeline)
→ `launch` → `workers` → `runs` (manifest) → `report`.

How a forecast goes: `training_case` → `architecture` → `network` (modules) → `training` (plays load, start and steps:
`network.run` forward and `tape` backward, inside a `deepspeed` engine, over a `memory` arena) → `forecast` → `verdict`.
"""


def summary(path: Path) -> str:
    """First line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def render() -> str:
    """The whole page."""
    lines = [HEAD]
    for package in ("planner", "llmsys_exp"):
        folders = sorted({p.parent for p in (ROOT / package).rglob("*.py") if "_shipped" not in p.parts})
        for folder in folders:
            lines.append(f"## `{folder.relative_to(ROOT)}/`\n\n| module | what it does |\n|---|---|")
            modules = sorted(p for p in folder.glob("*.py") if p.name != "__init__.py")
            lines += [f"| `{p.name}` | {summary(p)} |" for p in modules]
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    page = render()
    if "--check" in sys.argv:
        sys.exit(0 if MAP.exists() and MAP.read_text(encoding="utf-8") == page else 1)
    MAP.write_text(page, encoding="utf-8")
