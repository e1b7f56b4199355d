"""Answers of runs to the same prompts: how many are equal, and the first ones that are not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.compare.subjects import Subject
from llmsys_exp.errors import UserError
from llmsys_exp.reproduce.judge.inference import answers_in, digests_in

Asked = tuple[bytes, int]
"""Digest of a prompt, and how many equal ones stand before it in the file."""


@dataclass(frozen=True)
class AnswerPair:
    """How the answers of a run compare with those of the first that has any."""

    letter: str
    against: str
    shared: int
    """Prompts that both answered."""
    equal: int
    only: tuple[int, int]
    """Prompts that only the first run answered, and only this one."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dict(vars(self))


@dataclass(frozen=True)
class Differing:
    """A prompt that was not answered alike."""

    index: int
    """Its place in the prompt file of the first run."""
    prompt: str
    answers: Mapping[str, str]
    """Letter -> answer."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dict(vars(self))


def compare_answers(
    subjects: Sequence[Subject], most: int
) -> tuple[list[AnswerPair], list[Differing], list[str]]:
    """Compare answers by prompt, wherever it stands in the file.

    Args:
        subjects: the runs.
        most: how many differing answers to show.

    Returns:
        A pair for each run after the first that has answers; examples; what is wrong with files.
    """
    found: dict[str, dict[Asked, tuple[int, bytes]]] = {}
    files: dict[str, Path] = {}
    notes: list[str] = []
    for one in subjects:
        if not one.has_folder or not one.told.paths.generations.is_file():
            continue
        files[one.letter] = one.told.paths.generations
        try:
            found[one.letter] = _digests(files[one.letter])
        except (UserError, OSError) as error:
            notes.append(f"{one.letter}: {error}")
    if len(found) < 2:
        return [], [], notes
    first, *others = found
    pairs = [_pair(first, other, found[first], found[other]) for other in others]
    differing = [
        asked
        for asked, (_, digest) in found[first].items()
        if any(found[other].get(asked, (0, digest))[1] != digest for other in others)
    ]
    chosen = sorted(differing, key=lambda asked: found[first][asked][0])[:most]
    return pairs, _texts(chosen, found, files, first), notes


def _pair(
    first: str, other: str, old: Mapping[Asked, tuple[int, bytes]], new: Mapping[Asked, tuple[int, bytes]]
) -> AnswerPair:
    shared = old.keys() & new.keys()
    equal = sum(old[asked][1] == new[asked][1] for asked in shared)
    return AnswerPair(other, first, len(shared), equal, (len(old) - len(shared), len(new) - len(shared)))


def _digests(path: Path) -> dict[Asked, tuple[int, bytes]]:
    """Read a journal as digests, in the order of the prompt file: the texts may not fit into memory."""
    rows = digests_in(path)
    found: dict[Asked, tuple[int, bytes]] = {}
    times: dict[bytes, int] = {}
    for index, (prompt, answer) in sorted(rows.items()):
        times[prompt] = times.get(prompt, -1) + 1
        found[prompt, times[prompt]] = index, answer
    return found


def _texts(
    chosen: Sequence[Asked],
    found: Mapping[str, Mapping[Asked, tuple[int, bytes]]],
    files: Mapping[str, Path],
    first: str,
) -> list[Differing]:
    """Read the texts of a few prompts in a second pass."""
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for letter, table in found.items():
        wanted = {table[asked][0] for asked in chosen if asked in table}
        rows[letter] = _wanted(files[letter], wanted)
    examples: list[Differing] = []
    for asked in chosen:
        index = found[first][asked][0]
        row = rows[first].get(index, {})
        prompt = "\n".join(str(row[key]) for key in ("instruction", "input") if row.get(key))
        answers = {
            letter: str(rows[letter].get(table[asked][0], {}).get("output"))
            for letter, table in found.items()
            if asked in table
        }
        examples.append(Differing(index, prompt, answers))
    return examples


def _wanted(path: Path, indices: Collection[int]) -> dict[int, dict[str, Any]]:
    return {row["index"]: row for row in answers_in(path) if row["index"] in indices} if indices else {}
