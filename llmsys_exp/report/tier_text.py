"""A plan beside what another tier says of it: a row a phase, and how far they are apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmsys_exp.report.console import Console, gib, mib
from llmsys_exp.report.plan_rows import highest_phases
from llmsys_exp.report.plan_text import SMALL_BYTES
from planner.errors import OutOfMemory
from planner.forecast import Forecast

if TYPE_CHECKING:
    from llmsys_exp.dryrun.run import DryRun
    from llmsys_exp.dryrun.search import Found
    from planner.simulate.peak import Allocation

Row = tuple[str, "int | None", "int | None"]
"""What, by the formula, by the other tier; in bytes."""
PEAK = "peak, allocated"
FOUND = {
    "limit": ("Smallest limit that it survives", "fails", "GiB"),
    "micro_batch": ("Largest micro-batch that survives", "fails", ""),
    "length": ("Longest sequence that survives", "fails", "tokens"),
}


def phases_of(forecast: Forecast) -> dict[str, int]:
    """Return the peak of each phase as a dry run has them: gradients are reduced within backward."""
    phases = highest_phases(forecast.phases)
    phases["backward"] = max(phases.get("backward", 0), phases.pop("reduce", 0))
    return phases


def apart(formula: Forecast, other: Forecast) -> float:
    """Return how far what another tier says the job requires lies from the formula's, as a share of it."""
    return other.required_bytes / formula.required_bytes - 1


def show_simulated(console: Console, formula: Forecast, other: Forecast, *, widened: bool) -> None:
    """Write a simulated forecast beside the formula's, and that they widened the band where they did."""
    theirs = phases_of(other)
    rows: list[Row] = [(name, size, theirs.get(name)) for name, size in phases_of(formula).items()]
    rows += [
        (PEAK, formula.peak_allocated_bytes, other.peak_allocated_bytes),
        ("needed", formula.required_bytes, other.required_bytes),
        ("reserved", formula.peak_reserved_bytes, other.peak_reserved_bytes),
    ]
    console.title(f"Beside the {other.tier} tier, peaks")
    show_rows(console, rows, other.tier)
    if widened:
        share = 100 * abs(apart(formula, other))
        console.line(f"  They are {share:.1f} % apart in what is needed: the band above reaches to both.")
    for note in other.notes:
        console.line(f"  {note}.")


def show_largest(console: Console, largest: Sequence[Allocation], *, rank: int = 0) -> None:
    """Write the largest allocations at the peak of a step, and whose they are where that is not rank 0."""
    small = all(one.total_bytes < SMALL_BYTES for one in largest)
    unit, write = ("MiB", mib) if small else ("GiB", gib)
    whose = f" of rank {rank}" if rank else ""
    console.title(f"Largest at the peak{whose}, {unit}")
    rows = [
        [
            write(one.total_bytes),
            f"{one.count} x {write(one.nbytes)}",
            one.component,
            one.operator or "-",
            one.module or "-",
        ]
        for one in largest
    ]
    console.table(rows, header=("together", "each", "part", "operator", "module"), right=(0, 1))


def show_estimate(console: Console, formula: Forecast, peak_bytes: int) -> None:
    """Write the estimated peak beside the formula's."""
    highest = formula.highest_bytes
    console.title("Beside the estimate tier")
    show_rows(console, [("peak, engine start included", highest, peak_bytes)], "estimate")


def show_dryrun(console: Console, dry: DryRun) -> None:
    """Write how a dry run ended, its figures beside the formula's, and what was searched."""
    outcome = dry.outcome
    console.title(f"Dry run of rank {outcome.rank} of {outcome.world_size}")
    limit = outcome.limit_bytes
    limited = "" if limit is None else f" with the {gib(limit)} GiB that it may take"
    ending = f"{outcome.ending()[0].upper()}{outcome.ending()[1:]}{limited}."
    console.line(f"  {console.style(ending, 'green' if outcome.survived else 'red')}")
    console.line()
    show_rows(console, dryrun_rows(dry), "dry run", by=dry.plan.known[0].tier)
    if outcome.host_peak_bytes is not None:
        pinned = f", {gib(outcome.pinned_bytes)} of them page-locked" if outcome.pinned_bytes else ""
        console.line(f"  Main memory of the process: {gib(outcome.host_peak_bytes)} GiB at most{pinned}.")
    if dry.found is not None:
        console.line(f"  {found_line(dry.found)}")
    for note in dry.notes:
        console.line(f"  {note}.")


def dryrun_rows(dry: DryRun) -> list[Row]:
    """Return the figures of both: peaks, or on the CPU what is held at the end of each phase."""
    forecast, outcome, held = dry.plan.known[0], dry.outcome, dry.held_by_formula()
    names = [name for name in phases_of(forecast) if name in outcome.phases or not outcome.survived]
    if held:  # what autograd keeps after forward has no Python object to count
        names = [name for name in names if name != "forward"]
        return [(f"{name}, at its end", held.get(name), outcome.held_bytes(name)) for name in names]
    rows: list[Row] = [(name, phases_of(forecast)[name], outcome.peak_bytes(name)) for name in names]
    rows.append((PEAK, forecast.peak_allocated_bytes, outcome.peak_allocated_bytes))
    rows.append(("reserved", _reserved(forecast, outcome.limit_bytes), outcome.peak_reserved_bytes))
    return rows


def found_line(found: Found) -> str:
    """Say in one line what a search came to."""
    what, fails, unit = FOUND[found.what]

    def told(value: int | None) -> str:
        if value is None:
            return "none"
        return f"{gib(value) if found.what == 'limit' else value}{unit and f' {unit}'}"

    failed = "" if found.failed is None else f"; {told(found.failed)} {fails}"
    return f"{what}: {told(found.value)}{failed}. The formula says {told(found.forecast)}."


def _reserved(forecast: Forecast, limit_bytes: int | None) -> int | None:
    if limit_bytes is None:
        return forecast.peak_reserved_bytes
    try:
        return forecast.reserved_under(limit_bytes)
    except OutOfMemory:
        return None


def show_rows(console: Console, rows: Sequence[Row], name: str, *, by: str = "formula") -> None:
    """Write figures of two tiers side by side."""
    largest = max((size or 0 for row in rows for size in row[1:]), default=0)
    unit, write = ("MiB", mib) if largest < SMALL_BYTES else ("GiB", gib)
    cells = [
        [what, *("-" if size is None else write(size) for size in (formula, other)), _apart(formula, other)]
        for what, formula, other in rows
    ]
    header = ("", f"{by}, {unit}", f"{name}, {unit}", "difference")
    console.table(cells, header=header, right=(1, 2, 3))


def _apart(formula: int | None, other: int | None) -> str:
    if not formula or not other:
        return ""
    return f"{100 * (formula / other - 1):+.2f} %"
