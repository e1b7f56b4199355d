"""Loss and task score on held-out rows, shared out among the ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from llmsys_exp.workers import events
from llmsys_exp.workers.data.collate import collate
from llmsys_exp.workers.data.encode import Example
from llmsys_exp.workers.generation import Sampling, generate_batch
from llmsys_exp.workers.ranks import Ranks, batches
from llmsys_exp.workers.scores import NO_SCORE, mean_score

ANSWER_SLACK_TOKENS = 4
GENERATION_BATCH_TOKENS = 4096
"""Prompt tokens answered at once. No gradients are kept, so this stays below a training step's memory."""


class Evaluator:
    """Measures one model at several moments with the same rows."""

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        tokenizer: Any,
        ranks: Ranks,
        score: str,
        micro_batch: int,
        sharded: bool,
    ) -> None:
        self._examples, self._tokenizer, self._ranks = examples, tokenizer, ranks
        self._score, self._micro_batch = score, micro_batch
        # sharded weights are gathered by all ranks together, so no rank may stop early
        self._synced = sharded and ranks.world_size > 1

    def run(self, model: Any, name: str) -> dict[str, float | str]:
        """Return `loss`, the score under its own name, and the seconds it took."""
        started = time.monotonic()
        was_training = model.training
        model.eval()
        figures: dict[str, float | str] = {"loss": self._loss(model, name)}
        if self._score != NO_SCORE:
            figures |= {"score_name": self._score, "score": self._task_score(model, name)}
        model.train(was_training)
        return {**figures, "rows": len(self._examples), "seconds": round(time.monotonic() - started, 3)}

    def _loss(self, model: Any, name: str) -> float:
        import torch

        sum_of_losses, tokens = 0.0, 0
        mine = batches(self._ranks.share(len(self._examples)), self._micro_batch)
        for done, numbers in enumerate(mine, start=1):
            # a rank with nothing left repeats row 0 for the others' sake and counts nothing
            examples = [self._examples[max(number, 0)] for number in numbers]
            batch = collate(examples, pad_id=self._tokenizer.pad_token_id)
            for row, number in enumerate(numbers):
                if number < 0:
                    batch["labels"][row] = -100
            with torch.no_grad():
                moved = {key: value.to(self._ranks.device) for key, value in batch.items()}
                sum_of_losses += float(model(**moved, num_items_in_batch=1).loss)
            tokens += sum(self._examples[number].label_count for number in numbers if number >= 0)
            events.progress(f"{name}: loss", done, len(mine), unit="batch")
        total, count = self._ranks.total(sum_of_losses, tokens)
        return total / count

    def _task_score(self, model: Any, name: str) -> float:
        examples = self._examples
        longest_prompt = max(len(one.prompt_ids) for one in examples)
        sampling = Sampling(max(len(one.answer_ids) for one in examples) + ANSWER_SLACK_TOKENS)
        size = max(1, GENERATION_BATCH_TOKENS // (longest_prompt + sampling.max_new_tokens))
        mine = batches(self._ranks.share(len(examples)), size)
        sum_of_scores = 0.0
        for done, numbers in enumerate(mine, start=1):
            prompts = [examples[max(number, 0)].prompt_ids for number in numbers]
            tokens = generate_batch(
                model, self._tokenizer, prompts, sampling=sampling, synced_ranks=self._synced
            )
            answers = self._tokenizer.batch_decode(tokens, skip_special_tokens=True)
            sum_of_scores += sum(
                mean_score(self._score, [answer], [examples[number].row.output])
                for answer, number in zip(answers, numbers, strict=True)
                if number >= 0
            )
            events.progress(f"{name}: answers", done, len(mine), unit="batch")
        return self._ranks.total(sum_of_scores)[0] / len(examples)
