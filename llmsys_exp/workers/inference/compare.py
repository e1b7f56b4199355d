"""The first prompts again, greedily: does the engine under test answer as transformers does?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llmsys_exp.workers import events
from llmsys_exp.workers.engines import make_reference
from llmsys_exp.workers.engines.base import Engine, Generation, Request
from llmsys_exp.workers.generation import Sampling
from llmsys_exp.workers.inference.asked import Asked
from llmsys_exp.workers.inference.slot import EngineSlot
from llmsys_exp.workers.job import Job


def compare(job: Job, asked: Asked, slot: EngineSlot) -> dict[str, Any]:
    """Answer the first `inference.compare` prompts with both engines, each with the likeliest tokens.

    The reference answers one prompt at a time, without padding. The engine under test is stopped before the
    reference is loaded: it may have taken all memory there is.
    """
    requests = asked.requests[: job.config.inference.compare]
    greedy = replace(asked.sampling, temperature=0.0, top_p=1.0, top_k=0)
    running = slot.take(job, asked.source, asked.tokenizer, first=requests[0], sampling=greedy)
    events.phase("compare: engine under test")
    tested = _by_index(running.engine.generate(requests, greedy))
    slot.close()
    events.phase("compare: transformers")
    reference = make_reference(job)
    try:
        reference.start(asked.source, asked.tokenizer)
        known = _one_by_one(reference, requests, greedy)
    finally:
        reference.stop()
    return compared(
        [_ids(tested[one.index], asked.tokenizer) for one in requests],
        [_ids(known[one.index], asked.tokenizer) for one in requests],
    )


def compared(tested: Sequence[Sequence[int]], known: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the share of equal answers, and where each of the others first differs."""
    differences = []
    for index, (one, other) in enumerate(zip(tested, known, strict=True)):
        if tuple(one) != tuple(other):
            at = next(
                (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
                min(len(one), len(other)),
            )
            differences.append(
                {
                    "index": index,
                    "token": at,
                    "engine": one[at] if at < len(one) else None,
                    "transformers": other[at] if at < len(other) else None,
                    "of": max(len(one), len(other)),
                }
            )
    count = len(known)
    return {
        "prompts": count,
        "equal": count - len(differences),
        "share": (count - len(differences)) / count,
        "differences": differences,
    }


def _one_by_one(engine: Engine, requests: Sequence[Request], sampling: Sampling) -> dict[int, Generation]:
    found: dict[int, Generation] = {}
    for done, one in enumerate(requests, start=1):
        found |= _by_index(engine.generate([one], sampling))
        events.progress("compare", done, len(requests), unit="prompt")
    return found


def _by_index(answers: Any) -> dict[int, Generation]:
    return {one.index: one for one in answers}


def _ids(answer: Generation, tokenizer: Any) -> tuple[int, ...]:
    """Return an answer's tokens; of a server that tells text alone, those of the text."""
    if answer.ids is not None:
        return answer.ids
    return tuple(tokenizer(answer.text or "", add_special_tokens=False)["input_ids"])
