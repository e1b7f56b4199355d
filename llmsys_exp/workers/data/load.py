"""From a job's data settings to examples: the one entry to everything in this folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import DataFormat
from llmsys_exp.workers import events
from llmsys_exp.workers.data.cache import VERSION, Tokenised, cached
from llmsys_exp.workers.data.encode import Encoder
from llmsys_exp.workers.data.example import Example, Examples
from llmsys_exp.workers.data.fingerprint import hash_text, hash_tokenizer
from llmsys_exp.workers.data.packing import PackedExamples
from llmsys_exp.workers.data.parts import HELDOUT, Part, heldout_part, train_part
from llmsys_exp.workers.data.records import DataError
from llmsys_exp.workers.data.templates import use_template
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.scores import NO_SCORE, check_score


@dataclass(frozen=True)
class Loaded:
    """What a job learns from and is measured on."""

    train: Examples | PackedExamples
    heldout: Sequence[Example]
    notes: list[str] = field(default_factory=list)
    fingerprint: dict[str, Any] = field(default_factory=dict)
    """For the records of the run: hashes of data, template and tokenizer, rows, split, keys of the cache."""


def load_examples(job: Job, tokenizer: Any) -> Loaded:
    """Read, split, render and tokenise the data of a job, or take all that from the cache.

    The tokenizer is left with the chat template in use, so that it is saved with the model.

    Raises:
        DataError: naming file and row, or the setting, of what cannot be used.
    """
    events.phase("read data")
    how = _how(job, tokenizer)
    train, heldout = train_part(job), heldout_part(job) if job.config.training.evaluate else None
    if heldout is not None:
        check_score(job.config.data.score)
    wanted = [part for part in (train, heldout) if part is not None]
    parts = {part.name: _tokenised(job, tokenizer, part, how) for part in wanted}
    notes = [note for made in parts.values() for note in made.told["notes"]]
    found = parts[train.name].examples
    sequences = _packed(job, found, notes) if job.config.data.packing else found
    fingerprint = how | {name: _without_notes(made.told) for name, made in parts.items()}
    fingerprint |= {"sequences": len(sequences), "tokens": int(found.starts[-1])}
    return Loaded(sequences, parts[HELDOUT].examples if heldout else [], notes, fingerprint)


def _how(job: Job, tokenizer: Any) -> dict[str, Any]:
    """Return all that decides which tokens a row becomes, but the row."""
    data = job.config.data
    template = use_template(tokenizer, data.template)
    return {
        "version": VERSION,
        "template": template.name,
        "template_sha256": hash_text(template.text),
        "tokenizer_sha256": hash_tokenizer(tokenizer),
        "format": data.format.name,
        "columns": dict(sorted(data.columns.items())),
        "system": data.system,
        "max_length": data.max_length,
        "train_on_prompt": data.train_on_prompt,
    }


def _tokenised(job: Job, tokenizer: Any, part: Part, how: dict[str, Any]) -> Tokenised:
    which = part.describe()
    # a .jinja file is what its text says, wherever it lies
    decides = {name: value for name, value in how.items() if name != "template"} | which
    key = hash_text(json.dumps([part.name, decides], sort_keys=True))[:32]
    made, note = _made(job, tokenizer, part, key)
    if part.name == HELDOUT and job.config.data.score != NO_SCORE and made.told["format"] == "text":
        where = f"data.score={job.config.data.score}"
        raise DataError("Plain text has no answers to score", where=where, do="Set data.score=none")
    notes = [*([note] if note else []), *made.told["notes"]]
    if part.name == HELDOUT:
        notes = [f"Held out: {one}" for one in notes]
    described = {"source": str(part.source), **which, **made.told, "key": key, "notes": notes}
    return Tokenised(made.examples, described)


def _made(job: Job, tokenizer: Any, part: Part, key: str) -> tuple[Tokenised, str]:
    def make() -> Tokenised:
        return _encode(job, tokenizer, part)

    if not job.config.data.cache:
        return make(), ""
    folder = Path(job.config.paths.cache).expanduser().absolute() / "tokenised"
    return cached(folder / f"{key}.safetensors", make)


def _encode(job: Job, tokenizer: Any, part: Part) -> Tokenised:
    data = job.config.data
    items, kind = part.read()
    encoder = Encoder(
        tokenizer,
        max_length=data.max_length,
        system=data.system,
        train_on_prompt=data.train_on_prompt,
    )
    examples = encoder.encode(
        items,
        keep_rows=part.name == HELDOUT,
        on_progress=lambda done, total: events.progress("tokenise", done, total, unit="row"),
    )
    notes = encoder.counts.notes(data.max_length)
    if kind is DataFormat.preference:
        notes.insert(0, "Of each preference pair the chosen answer is learnt; the rejected one is not used.")
    counts = {"rows": len(items), "examples": len(examples), **encoder.counts.to_dict()}
    return Tokenised(examples, {"format": kind.name, **counts, "notes": notes})


def _packed(job: Job, examples: Examples, notes: list[str]) -> PackedExamples:
    max_length = job.config.data.max_length
    packed = PackedExamples(examples, max_length=max_length, seed=job.config.seed)
    full = int(examples.starts[-1]) / (len(packed) * max_length)
    notes.append(f"{len(examples)} examples were packed into {len(packed)} sequences, {full:.0%} full.")
    return packed


def _without_notes(told: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if name != "notes"}
