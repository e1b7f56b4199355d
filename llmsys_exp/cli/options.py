"""Our own flags, taken out before Hydra reads the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from llmsys_exp.errors import UserError, closest


@dataclass(frozen=True)
class Options:
    """Flags that every verb takes."""

    json: bool = False
    verbose: bool = False
    help: bool = False


@dataclass(frozen=True)
class TableOptions:
    """Flags of verbs whose result is a table: where to write it and how to draw it."""

    csv: Path | None = None
    parquet: Path | None = None
    plot: Path | None = None
    axes: tuple[str, str] | None = None
    force: bool = False

    @property
    def files(self) -> dict[str, Path]:
        """The files asked for, by flag."""
        asked = {"--csv": self.csv, "--parquet": self.parquet, "--plot": self.plot}
        return {flag: path for flag, path in asked.items() if path is not None}


TABLE_FLAGS = tuple(f"--{item.name}" for item in fields(TableOptions))
"""Flags of `TableOptions`, for lists of valid flags."""


def split_options(arguments: Sequence[str]) -> tuple[Options, list[str]]:
    """Return our flags, and the arguments without them."""
    flags = {"--json": "json", "--verbose": "verbose", "--help": "help", "-h": "help"}
    found = {flags[text]: True for text in arguments if text in flags}
    return Options(**found), [text for text in arguments if text not in flags]


def split_table_options(arguments: Sequence[str]) -> tuple[TableOptions, list[str]]:
    """Return the flags of a table, and the arguments without them."""
    values, rest = take_values(
        arguments, {"--csv": "FILE", "--parquet": "FILE", "--plot": "FILE", "--axes": "ACROSS,DOWN"}
    )
    paths = {flag[2:]: Path(values[flag]) for flag in ("--csv", "--parquet", "--plot") if flag in values}
    axes = _two_names(values["--axes"]) if "--axes" in values else None
    force = "--force" in rest
    return TableOptions(**paths, axes=axes, force=force), [text for text in rest if text != "--force"]


def take_values(arguments: Sequence[str], takes: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Take out flags with a value, written `--flag VALUE` or `--flag=VALUE`.

    Args:
        arguments: the command line.
        takes: flag -> what its value is called in messages.
    """
    values: dict[str, str] = {}
    rest: list[str] = []
    waiting = list(arguments)
    while waiting:
        text = waiting.pop(0)
        flag, equals, value = text.partition("=")
        if flag not in takes:
            rest.append(text)
            continue
        if not equals:
            value = waiting.pop(0) if waiting and not _is_flag(waiting[0]) else ""
        if not value:
            raise UserError(f"{flag} needs a value", do=f"Write {flag} {takes[flag]}")
        if flag in values:
            raise UserError(f"{flag} is given twice", where=f"{values[flag]} and {value}", do="Keep one")
        values[flag] = value
    return values, rest


def _is_flag(text: str) -> bool:
    """Whether no value begins so: a number below zero is one, for whoever refuses it by what it means."""
    return text.startswith("-") and not text[1:].isdigit()


def take_repeated(arguments: Sequence[str], flag: str, what: str) -> tuple[list[str], list[str]]:
    """Take out a flag that may be given several times, written `--flag VALUE` or `--flag=VALUE`."""
    values: list[str] = []
    rest: list[str] = []
    waiting = list(arguments)
    while waiting:
        text = waiting.pop(0)
        if text != flag and not text.startswith(f"{flag}="):
            rest.append(text)
            continue
        value = text.removeprefix(f"{flag}=") if text != flag else waiting.pop(0) if waiting else ""
        if not value or value.startswith("--"):
            raise UserError(f"{flag} needs a value", do=f"Write {flag} {what}")
        values.append(value)
    return values, rest


def no_more_arguments(verb: str, rest: Sequence[str]) -> None:
    """Refuse arguments that a verb does not take."""
    if rest:
        raise unknown_argument(rest[0], ["--json", "--verbose", "--help"], where=f"llmsys {verb}")


def unknown_argument(text: str, valid: Sequence[str], *, where: str) -> UserError:
    """Describe an argument that nobody takes, with the closest one."""
    near = closest(text, valid)
    hint = f"Did you mean {near}?" if near else f"It takes {', '.join(valid)}"
    return UserError(f"{text} is not an argument", where=where, do=hint)


def _two_names(text: str) -> tuple[str, str]:
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise UserError(
            f"--axes={text} does not name two overrides",
            do="Write --axes ACROSS,DOWN, for example --axes training.micro_batch,model",
        )
    return names[0], names[1]
