"""The flags of `llmsys plan --tier NAME`: which tier answers, and what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llmsys_exp.cli.options import take_values
from llmsys_exp.errors import UserError, unknown_name

AUTO = "auto"
FORMULA, ESTIMATE, SIMULATE, DRYRUN = "formula", "estimate", "simulate", "dryrun"
TIER, RANK, SEARCH, SHARED = "--tier", "--rank", "--search", "--allow-shared"
SNAPSHOT, TIMELINE = "--snapshot", "--timeline"
TIER_FLAGS = (TIER, RANK, SEARCH, SHARED, SNAPSHOT, TIMELINE)
TIERS = (AUTO, FORMULA, ESTIMATE, SIMULATE, DRYRUN)
_OVERRIDE = "tier="
_TAKES = {SIMULATE: (RANK, SNAPSHOT, TIMELINE), DRYRUN: (RANK, SEARCH, SHARED)}


@dataclass(frozen=True)
class TierOptions:
    """Which tier answers, what is asked of a dry run, and which files a simulation writes."""

    name: str = AUTO
    rank: int = 0
    search: str | None = None
    shared: bool = False
    files: dict[str, Path] = field(default_factory=dict[str, Path])
    """Flag -> file."""


def split_tier_options(arguments: Sequence[str]) -> tuple[TierOptions, list[str]]:
    """Return the flags of tiers, and the arguments without them; `tier=NAME` is `--tier NAME`.

    Raises:
        UserError: for a tier that is none, or flags that are of another.
    """
    told = [f"--{text}" if text.startswith(_OVERRIDE) else text for text in arguments]
    values, rest = take_values(
        told,
        {
            TIER: "|".join(TIERS),
            RANK: "NUMBER",
            SEARCH: "WHAT",
            SNAPSHOT: "FILE.pickle",
            TIMELINE: "FILE.png",
        },
    )
    name = values.get(TIER, AUTO)
    if name not in TIERS:
        raise unknown_name("tier", name, TIERS, where=TIER)
    takes = _TAKES.get(name, ())
    for flag in TIER_FLAGS[1:]:
        if (flag in values or flag in rest) and flag not in takes:
            others = " or ".join(f"{TIER} {one}" for one, flags in _TAKES.items() if flag in flags)
            raise UserError(f"{flag} goes with {others}", where=f"{TIER} {name}", do="Leave one out")
    rank = values.get(RANK, "0")
    if not rank.isdigit():
        raise UserError(f"{RANK} {rank} is not a rank", do=f"Write {RANK} NUMBER, counted from 0")
    files = {flag: Path(values[flag]) for flag in (SNAPSHOT, TIMELINE) if flag in values}
    options = TierOptions(name, int(rank), values.get(SEARCH), SHARED in rest, files)
    return options, [text for text in rest if text != SHARED]


def check_tier(options: TierOptions, *, serves: bool = False, swept: bool = False) -> None:
    """Refuse another tier than the formula where none is asked.

    Raises:
        UserError: saying where it is.
    """
    if options.name in (AUTO, FORMULA):
        return
    where = f"{TIER} {options.name}"
    if serves:
        raise UserError("What is served has one tier, formula", where=where, do=f"Leave {TIER} out")
    if swept:
        raise UserError(
            "The points of a sweep are planned by formula",
            where=f"{where} with -m",
            do="Plan one point; in `llmsys sweep`, gate.tier=dryrun dry-runs those near the limit",
        )
