"""The engine that runs on any machine: transformers' own `generate`, batched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmsys_exp.workers.engines.base import Generation
from llmsys_exp.workers.generation import Sampling, generate_batch
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.models.load import load_model_folder
from llmsys_exp.workers.models.tokenizer import check_vocabulary
from llmsys_exp.workers.ranks import pick_device, quieten, seed_everything, use_threads_of_environment


class TransformersEngine:
    """Holds one model on one device."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._model: Any = None
        self._tokenizer: Any = None

    @property
    def context_tokens(self) -> int | None:
        """Positions the model was built for."""
        return getattr(self._model.config.get_text_config(), "max_position_embeddings", None)

    def load(self, folder: Path | str, tokenizer: Any) -> None:
        """Load the model in the run's compute type."""
        use_threads_of_environment()
        quieten()
        self._tokenizer = tokenizer
        self._model = load_model_folder(self._job, str(folder)).to(pick_device(self._job.resolved.device))
        check_vocabulary(self._model, tokenizer)

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, *, seed: int
    ) -> list[Generation]:
        """Answer all prompts as one padded batch."""
        seed_everything(seed)
        answers = generate_batch(self._model, self._tokenizer, prompts, sampling=sampling)
        texts = self._tokenizer.batch_decode(answers, skip_special_tokens=True)
        return [
            Generation(
                text=text.strip(),
                new_tokens=len(ids),
                finish="length" if len(ids) == sampling.max_new_tokens else "stop",
            )
            for text, ids in zip(texts, answers, strict=True)
        ]
