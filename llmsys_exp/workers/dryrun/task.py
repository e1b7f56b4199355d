"""A language model that trains on random tokens: every sequence as long as the settings allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from llmsys_exp.workers.data.example import Example, TrainingSequences
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.models.shape import model_shape
from llmsys_exp.workers.ranks import Ranks
from llmsys_exp.workers.tasks.causal_lm import CausalLm

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RandomSequences(TrainingSequences):
    """Sequences of one length, all but the first token learnt; packed ones hold two examples each."""

    def __init__(self, *, count: int, length: int, vocabulary: int, packed: bool, seed: int) -> None:
        self._count, self._length, self._vocabulary, self._seed = count, length, vocabulary, seed
        self._parts = (length // 2, length - length // 2) if packed and length > 1 else ()

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sequence."""
        return np.full(self._count, self._length, dtype=np.int64)

    @cached_property
    def learnt_counts(self) -> NDArray[np.int64]:
        """Learnt tokens of each sequence."""
        return self.lengths - (len(self._parts) or 1)

    @cached_property
    def pairs(self) -> NDArray[np.int64]:
        """Squared lengths of what attends to itself."""
        return np.full(self._count, sum(one**2 for one in self._parts or (self._length,)), dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of sequences."""
        return self._count

    def _made(self, number: int) -> Example:
        drawn = np.random.default_rng((self._seed, number))
        ids = drawn.integers(0, self._vocabulary, self._length, dtype=np.int32)
        learnt = np.ones(self._length, dtype=np.bool_)
        learnt[0] = False
        if self._parts:
            learnt[self._parts[0]] = False
        return Example(ids, learnt, lengths=self._parts)


class RandomTokens(CausalLm):
    """The language model of the training worker, without tokenizer and rows."""

    def __init__(self, job: Job, ranks: Ranks, *, after_forward: Callable[[], None]) -> None:
        """Make as many sequences as one step takes over all ranks."""
        self._job, self._ranks, self._config = job, ranks, job.config
        self._after_forward, self._pad_id = after_forward, 0
        self._set_up()
        training = job.config.training
        self.examples = RandomSequences(
            count=int(training.micro_batch) * int(training.grad_accum) * ranks.world_size,
            length=job.config.data.max_length,
            vocabulary=model_shape(job).get_text_config().vocab_size,
            packed=job.config.data.packing,
            seed=job.config.seed,
        )
        self.heldout = ()

    def check(self, model: Any) -> None:
        """Nothing to look for: the tokens are drawn from the model's own vocabulary."""

    def loss(self, engine: Any, batch: Mapping[str, Any], targets: float) -> Any:
        """Run forward as in training, and tell that it is over."""
        loss = super().loss(engine, batch, targets)
        self._after_forward()
        return loss
