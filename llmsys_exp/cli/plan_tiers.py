"""The flags of `llmsys plan --tier NAME`: which tier answers, and what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llmsys_exp.cli.options import take_values
from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError, unknown_name
from planner.forecast import ESTIMATE, FORMULA, SIMULATE
from planner.forecasting import AUTO

DRYRUN = "dryrun"
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
    force: bool = False
    """Whether these may replace others."""


def split_tier_options(arguments: Sequence[str]) -> tuple[TierOptions, list[str]]:
    """Return the flags of tiers, and the arguments without them; `tier=NAME` is `--tier NAME`.

    What only a simulation knows asks for one: `--rank`, `--snapshot` and `--timeline` without `--tier`.

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
    asked = [flag for flag in TIER_FLAGS[1:] if flag in values or flag in rest]
    name = values.get(TIER, AUTO)
    if name == AUTO and asked and set(asked) <= set(_TAKES[SIMULATE]):
        name = SIMULATE
    if name not in TIERS:
        raise unknown_name("tier", name, TIERS, where=TIER)
    for flag in asked:
        if flag not in _TAKES.get(name, ()):
            others = " or ".join(f"{TIER} {one}" for one, flags in _TAKES.items() if flag in flags)
            do = f"Leave {flag} out" if name == AUTO else "Leave one out"
            raise UserError(f"{flag} goes with {others}", where=f"{TIER} {name}", do=do)
    rank = values.get(RANK, "0")
    if not (rank.isascii() and rank.isdigit()):
        raise UserError(f"{RANK} {rank} is not a rank", do=f"Write {RANK} NUMBER, counted from 0")
    files = {flag: Path(values[flag]) for flag in (SNAPSHOT, TIMELINE) if flag in values}
    options = TierOptions(name, int(rank), values.get(SEARCH), SHARED in rest, files)
    return options, [text for text in rest if text != SHARED]


def check_rank(options: TierOptions, config: Config) -> None:
    """Refuse a rank that a job has not.

    Raises:
        UserError: naming those there are.
    """
    hardware = config.hardware
    ranks = hardware.gpus_per_node * hardware.nodes
    if options.rank >= ranks:
        has = "1 rank, which is 0" if ranks == 1 else f"{ranks} ranks, 0 to {ranks - 1}"
        raise UserError(
            f"{RANK} {options.rank} is beyond this job",
            why=f"It has {has}",
            do="hardware.gpus_per_node and hardware.nodes say how many there are",
        )


def check_swept(options: TierOptions) -> None:
    """Refuse what is asked of one job alone.

    Raises:
        UserError: saying where it is.
    """
    for flag in options.files:
        raise UserError(f"{flag} is of one job", where=f"{flag} with -m", do="Plan one point")
    if options.name not in (AUTO, FORMULA, SIMULATE):
        raise UserError(
            f"The points of a sweep are planned by {FORMULA} or {SIMULATE}",
            where=f"{TIER} {options.name} with -m",
            do="Plan one point; in `llmsys sweep`, gate.tier=dryrun dry-runs those near the limit",
        )
