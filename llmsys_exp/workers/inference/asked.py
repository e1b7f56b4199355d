"""What a run asks, before there is an engine: prompts as tokens, sampling, and a key of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import Weights
from llmsys_exp.inputs.weight_files import fingerprint
from llmsys_exp.workers import events
from llmsys_exp.workers.data.records import DataError
from llmsys_exp.workers.engines.base import Request
from llmsys_exp.workers.generation import Sampling, end_token_ids
from llmsys_exp.workers.inference.answers import digest
from llmsys_exp.workers.inference.prompts import Prompt, check_lengths, encode_questions, read_questions
from llmsys_exp.workers.inference.source import context_of, model_source, stated_ends
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.models.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Asked:
    """What a run asks: prompts in file order, and how they are answered."""

    source: str
    tokenizer: Any
    prompts: list[Prompt]
    requests: list[Request]
    sampling: Sampling


def ask(job: Job) -> Asked:
    """Read and encode the prompts.

    Raises:
        UserError: for what cannot be answered, before any weight is loaded.
    """
    events.phase("read prompts")
    settings, data = job.config.inference, job.config.data
    file = job.resolved.prompts_file
    if file is None:
        raise DataError("There is no prompt file", where="inference.prompts", do="Give a json or jsonl file")
    questions = read_questions(file, data.columns, limit=settings.limit)
    source = model_source(job)
    tokenizer = load_tokenizer(job, source=source)
    template = data.template if settings.template is None else settings.template
    prompts = encode_questions(tokenizer, questions, template=template, system=data.system)
    sampling = _sampling(job, end_token_ids(stated_ends(job, source), tokenizer))
    check_lengths(prompts, max_new_tokens=sampling.max_new_tokens, context_tokens=context_of(job, source))
    requests = [
        # a seed for each prompt: its answer does not hang on what else is asked
        Request(at, one.ids, one.text, job.config.seed + at, one.question.max_new_tokens)
        for at, one in enumerate(prompts)
    ]
    return Asked(source, tokenizer, prompts, requests, sampling)


def _sampling(job: Job, ends: Sequence[int]) -> Sampling:
    settings = job.config.inference
    return Sampling(
        max_new_tokens=settings.sampling.max_new_tokens,
        temperature=settings.sampling.temperature,
        top_p=settings.sampling.top_p,
        top_k=settings.sampling.top_k,
        ignore_eos=settings.ignore_eos,
        end_ids=tuple(ends),
    )


def journal_key(job: Job, asked: Asked) -> dict[str, str]:
    """Hash all that an answer depends on."""
    config, model = job.config, job.config.model
    folders = (Path(asked.source), job.resolved.adapter_folder)
    weights = [fingerprint(one) if one is not None and one.is_dir() else None for one in folders]
    named = asked.source if weights[0] is None else None
    drawn = [model.entry, config.seed] if model.weights is Weights.random else None
    return {
        "prompts": digest([(one.ids, one.max_new_tokens) for one in asked.requests]),
        "sampling": digest(asdict(asked.sampling), config.seed),
        "model": digest(named, model.revision, weights, drawn, config.training.dtype.name),
        "engine": digest(config.inference.engine, config.inference.server.url, config.inference.server.model),
    }
