"""A dry run of a plan as a whole: refuse, run, search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmsys_exp.dryrun.card import Card
from llmsys_exp.dryrun.checks import LIMIT, DryAsk
from llmsys_exp.dryrun.held import held_by_formula
from llmsys_exp.dryrun.outcome import Outcome
from llmsys_exp.dryrun.search import Found, search
from llmsys_exp.dryrun.start import Bench, dry_run, make_bench
from llmsys_exp.plan import Plan
from llmsys_exp.report.console import Console
from planner.units import gib


@dataclass(frozen=True)
class DryRun:
    """What a dry run of a plan came to."""

    plan: Plan
    outcome: Outcome
    bench: Bench
    found: Found | None = None

    @property
    def notes(self) -> list[str]:
        """What has to be known to read its figures."""
        card, wanted = self.bench.card, self.plan.config.hardware.gpu
        if card is None:
            return ["On the CPU what is held at the end of each phase is counted; peaks are not seen"]
        notes = _about(card, wanted)
        if self.bench.is_short and not self.outcome.survived:
            free = f"{gib(card.free_bytes):.1f} GiB that are free here"
            notes.append(f"It had the {free}: the limit of a {wanted} was not reached")
        return notes

    @property
    def is_conclusive(self) -> bool:
        """Whether its ending says anything of the card that is planned for."""
        if self.bench.card is None:
            return not self.outcome.survived  # it had no limit to break
        return self.outcome.survived or not self.bench.is_short

    @property
    def fits(self) -> bool:
        """The verdict: by what was found out, else by the formula."""
        if self.found is not None and self.found.what == LIMIT and self.found.value is not None:
            return self.found.value <= self.plan.verdict.budget_bytes
        return self.outcome.survived if self.is_conclusive else self.plan.verdict.fits

    def held_by_formula(self) -> dict[str, int]:
        """Return what the formula holds at the end of each phase, where the dry run tells no peaks."""
        return held_by_formula(self.plan.config) if self.bench.card is None else {}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **self.outcome.to_dict(),
            "search": None if self.found is None else self.found.to_dict(),
            "notes": self.notes,
        }


def run_dry(plan: Plan, ask: DryAsk, console: Console) -> DryRun:
    """Run a plan as one rank, and search where it ends if that is asked for.

    Raises:
        UserError: when it cannot be run here, or fails in another way than for want of memory.
    """
    bench = make_bench(plan, ask)
    if ask.search == LIMIT:
        bench = Bench(bench.python, bench.card, None)  # what it takes when nothing limits it

    def probe(at: Plan, limit_bytes: int | None) -> Outcome:
        return dry_run(at, bench, console, rank=ask.rank, limit_bytes=limit_bytes)

    outcome = probe(plan, None)
    found = None if ask.search is None else search(ask.search, plan, outcome, probe)
    return DryRun(plan, outcome, bench, found)


def _about(card: Card, wanted: str) -> list[str]:
    if card.kind == wanted:
        return []
    return [f"Run on a {card.name}, whose allocator stood for that of a {wanted}"]
