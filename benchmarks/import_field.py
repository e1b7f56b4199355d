"""Imports every configuration below some folders and prints what became of each: `python -m benchmarks.import_field FOLDER ...`.

Clone the tools whose files are to be read (LLaMA-Factory, axolotl, DeepSpeedExamples) anywhere; nothing of them is
executed. A line a file: format, settings, keys that could not be mapped, what the plan says; at the end the reasons
by number. `--hardware NAME` and `--json FILE` as they say.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.importers import read
from llmsys_exp.importers.experiment import build
from llmsys_exp.report.console import Console, gib

ENDINGS = (".yaml", ".yml", ".json", ".sh")


def main(arguments: Sequence[str] | None = None) -> int:
    """Import everything; return 1 where a file broke the program rather than being refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--hardware", default="h100")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    rows = [
        {"file": str(path.relative_to(folder)), **outcome(path, given.hardware)}
        for folder in given.folders
        for path in files_below(folder)
    ]
    if given.json is not None:
        given.json.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    show(Console.on(sys.stdout), rows)
    return int(any(row["outcome"] == "broke" for row in rows))


def files_below(folder: Path) -> Iterator[Path]:
    """Every file that could be a configuration, in order."""
    found = [folder] if folder.is_file() else sorted(folder.rglob("*"))
    return (path for path in found if path.is_file() and path.suffix in ENDINGS)


def outcome(path: Path, hardware: str) -> dict[str, Any]:
    """Import and plan one file."""
    try:
        experiment = build(read(path), [f"hardware={hardware}"])
    except UserError as error:
        return {"outcome": "refused", "why": error.what}
    except Exception as error:
        return {"outcome": "broke", "why": f"{type(error).__name__}: {error}"}
    imported, plan = experiment.imported, experiment.plan
    found = {
        "format": imported.format,
        "settings": len(imported.groups) + len(imported.settings),
        "lost": [one.key for one in imported.lost],
        "harmless": len(imported.unmapped) - len(imported.lost),
    }
    if plan is None:
        return {"outcome": "plan refuses", "why": experiment.refusal, **found}
    return {"outcome": plan.verdict.label, "needed_gib": gib(plan.forecast.required_bytes), **found}


def show(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """Print a line a file, and totals."""
    header = ("file", "format", "settings", "lost", "plan", "GiB or reason")
    lines = [
        (
            row["file"][-60:], row.get("format", "-"), str(row.get("settings", "-")), str(len(row.get("lost", ()))),
            row["outcome"], row.get("needed_gib") or row.get("why", ""),
        )
        for row in rows
    ]  # fmt: skip
    console.table(lines, header=header, right=(2, 3))
    console.title("Totals")
    console.table(
        [(name, str(count)) for name, count in Counter(row["outcome"] for row in rows).most_common()]
    )
    keys = Counter(key for row in rows for key in row.get("lost", ()))
    console.title("Keys that could not be mapped, by number of files")
    console.table([(", ".join(f"{key} {count}" for key, count in keys.most_common(40)),)])


if __name__ == "__main__":
    sys.exit(main())
