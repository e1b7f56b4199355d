"""Answer a file of prompts with the trained model, or with the base model where none was trained.

python -m llmsys_exp.workers.infer RUN_FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.workers import events
from llmsys_exp.workers.data.encode import encode_prompt
from llmsys_exp.workers.data.rows import DataError, Row, read_rows
from llmsys_exp.workers.data.templates import use_template
from llmsys_exp.workers.engines import make_engine
from llmsys_exp.workers.engines.base import Engine, Generation
from llmsys_exp.workers.exits import run_and_exit
from llmsys_exp.workers.files import write_json
from llmsys_exp.workers.generation import Sampling
from llmsys_exp.workers.job import Job, folder_argument, load_job, settled
from llmsys_exp.workers.models.tokenizer import load_tokenizer
from llmsys_exp.workers.ranks import batches
from llmsys_exp.workers.scores import NO_SCORE, check_score, mean_score


def answer_prompts(job: Job) -> None:
    """Load, answer in batches, write the answers as they come and the figures at the end."""
    events.phase("read prompts")
    rows = _read_prompts(job)
    is_trained = job.paths.merged.is_dir()
    source = str(job.paths.merged) if is_trained else job.model_source
    engine = make_engine(job)
    tokenizer = load_tokenizer(job, source=source)
    data = job.config.data
    use_template(tokenizer, data.template)
    prompts = [encode_prompt(tokenizer, row, system=data.system) for row in rows]
    events.phase("load model")
    engine.load(source, tokenizer)
    sampling = _sampling(job)
    _check_lengths(
        prompts, sampling, context_tokens=engine.context_tokens, where=str(job.resolved.prompts_file)
    )
    events.phase("answer prompts")
    started = time.monotonic()
    answers = _answer(job, engine, rows, prompts, sampling=sampling)
    figures = _figures(prompts, answers, seconds=time.monotonic() - started)
    scored = _score(job, rows, answers)
    described = {"engine": job.config.inference.engine, "trained": is_trained, "model_folder": source}
    write_json(job.paths.result("infer"), described | figures | scored)


def _read_prompts(job: Job) -> list[Row]:
    file, settings = job.resolved.prompts_file, job.config.inference
    if file is None:
        raise DataError("There is no prompt file", where="inference.prompts", do="Give a json or jsonl file")
    return read_rows(file, job.config.data.columns, need_output=False, limit=settings.limit)


def _sampling(job: Job) -> Sampling:
    wanted = job.config.inference.sampling
    return Sampling(
        max_new_tokens=wanted.max_new_tokens,
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        top_k=wanted.top_k,
    )


def _check_lengths(
    prompts: Sequence[Sequence[int]], sampling: Sampling, *, context_tokens: int | None, where: str
) -> None:
    if context_tokens is None:
        return
    for number, prompt in enumerate(prompts, start=1):
        if len(prompt) + sampling.max_new_tokens > context_tokens:
            raise UserError(
                f"Prompt {number} has {len(prompt)} tokens and may get {sampling.max_new_tokens} more",
                where=where,
                why=f"The model's context holds {context_tokens}",
                do="Shorten the prompt or lower inference.sampling.max_new_tokens",
            )


def _answer(
    job: Job, engine: Engine, rows: Sequence[Row], prompts: Sequence[Sequence[int]], *, sampling: Sampling
) -> list[Generation]:
    settings = job.config.inference
    size = settled(settings.batch_size, "inference.batch_size")
    answers: list[Generation] = []
    started = time.monotonic()
    with (
        job.paths.generations.open("w", encoding="utf-8") as every,
        job.paths.outputs.open("w", encoding="utf-8") as some,
    ):
        for numbers in batches(range(len(prompts)), size):
            # a seed for each batch: its answers do not hang on what came before
            seed = job.config.seed + numbers[0]
            answers += engine.generate([prompts[number] for number in numbers], sampling, seed=seed)
            for number in numbers:
                record = _record(number, rows[number], answers[number])
                every.write(json.dumps(record, ensure_ascii=False) + "\n")
                if number % settings.save_every == 0:
                    some.write(json.dumps(record, ensure_ascii=False) + "\n")
            every.flush()
            some.flush()
            tokens_per_s = sum(one.new_tokens for one in answers) / (time.monotonic() - started)
            events.progress("infer", len(answers), len(prompts), unit="prompt", tokens_per_s=tokens_per_s)
    return answers


def _record(number: int, row: Row, answer: Generation) -> dict[str, Any]:
    return {
        "index": number,
        "instruction": row.instruction,
        "input": row.input,
        "output": answer.text,
        "new_tokens": answer.new_tokens,
        "finish": answer.finish,
    }


def _figures(
    prompts: Sequence[Sequence[int]], answers: Sequence[Generation], *, seconds: float
) -> dict[str, Any]:
    new_tokens = sum(one.new_tokens for one in answers)
    return {
        "prompts": len(prompts),
        "prompt_tokens": sum(map(len, prompts)),
        "new_tokens": new_tokens,
        "stopped": sum(one.finish == "stop" for one in answers),
        "seconds": seconds,
        "tokens_per_s": new_tokens / seconds,
    }


def _score(job: Job, rows: Sequence[Row], answers: Sequence[Generation]) -> dict[str, Any]:
    """Score the answers where the prompt file has references for all of them."""
    name = job.config.data.score
    check_score(name)
    if name == NO_SCORE or not all(row.output for row in rows):
        return {}
    score = mean_score(name, [one.text for one in answers], [row.output for row in rows])
    return {"score_name": name, "score": score}


def main() -> None:
    """Entry point."""
    answer_prompts(load_job(folder_argument(sys.argv[1:], worker="infer")))


if __name__ == "__main__":
    run_and_exit(main)
