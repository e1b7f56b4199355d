"""Our own flags, taken out before Hydra reads the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmsys_exp.errors import UserError, closest


@dataclass(frozen=True)
class Options:
    """Flags that every verb takes."""

    json: bool = False
    verbose: bool = False
    help: bool = False


def split_options(arguments: Sequence[str]) -> tuple[Options, list[str]]:
    """Return our flags, and the arguments without them."""
    flags = {"--json": "json", "--verbose": "verbose", "--help": "help", "-h": "help"}
    found = {flags[text]: True for text in arguments if text in flags}
    return Options(**found), [text for text in arguments if text not in flags]


def no_more_arguments(verb: str, rest: Sequence[str]) -> None:
    """Refuse arguments that a verb does not take."""
    if rest:
        raise unknown_argument(rest[0], ["--json", "--verbose", "--help"], where=f"llmsys {verb}")


def unknown_argument(text: str, valid: Sequence[str], *, where: str) -> UserError:
    """Describe an argument that nobody takes, with the closest one."""
    near = closest(text, valid)
    hint = f"Did you mean {near}?" if near else f"It takes {', '.join(valid)}"
    return UserError(f"{text} is not an argument", where=where, do=hint)
