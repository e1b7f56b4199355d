"""A language model that learns to answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llmsys_exp.config.schema import MethodKind
from llmsys_exp.workers import events
from llmsys_exp.workers.data.apart import check_kept_apart
from llmsys_exp.workers.data.collate import collate
from llmsys_exp.workers.data.example import Example
from llmsys_exp.workers.data.load import load_examples
from llmsys_exp.workers.job import Job, settled
from llmsys_exp.workers.methods import ADAPTED, apply_method, saves_adapters
from llmsys_exp.workers.models.kernels import use_kernels
from llmsys_exp.workers.models.load import load_base_model
from llmsys_exp.workers.models.sharding import built_sharded
from llmsys_exp.workers.models.tokenizer import check_vocabulary, load_tokenizer
from llmsys_exp.workers.ranks import Ranks
from llmsys_exp.workers.shards import GB
from llmsys_exp.workers.tasks.base import Sizes
from llmsys_exp.workers.training.evaluate import Evaluator
from llmsys_exp.workers.training.saving import save_adapter, save_trained_base, save_whole_model

PAD_TO = 8
"""Tokens: what tensor cores take at once in 16 bit."""


class CausalLm:
    """Supervised fine-tuning: next-token loss on answers."""

    unit = "token"

    def __init__(self, job: Job, ranks: Ranks) -> None:
        self._job, self._ranks, self._config = job, ranks, job.config
        self._set_up()
        self._tokenizer = load_tokenizer(job)
        self._pad_id = self._tokenizer.pad_token_id
        data = load_examples(job, self._tokenizer)
        self.examples, self.heldout = data.train, data.heldout
        self._told = data.fingerprint
        self.fingerprint: str = data.fingerprint["train"]["key"]
        for note in data.notes:
            events.note(note)

    def _set_up(self) -> None:
        # flash attention's kernel is told where packed examples begin; others see it in the positions
        self._varlen = self._config.training.attention == "flash_attention_2"
        self._unchecked = self._config.data.packing

    def check(self, model: Any) -> None:
        """Refuse a model that does not know all of the tokenizer's tokens."""
        check_vocabulary(model, self._tokenizer)

    def build(self) -> Any:
        """Load the model, put kernels and adapters on, and set checkpointing."""
        ds_config = json.loads(self._job.paths.ds_config.read_text(encoding="utf-8"))
        with built_sharded(ds_config, quantised=self._config.method.kind is MethodKind.qlora):
            model = load_base_model(self._job, device=self._ranks.device)
            self.check(model)
            use_kernels(model, self._config.training, device=self._ranks.device)
            return apply_method(model, self._config)

    def collate(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Pad to one width; on a GPU to a multiple, but never beyond what was planned."""
        return collate(
            examples,
            pad_id=self._pad_id,
            varlen=self._varlen,
            multiple=PAD_TO if self._ranks.device.type == "cuda" else 1,
            most=self._config.data.max_length,
        )

    def sizes(self, numbers: Sequence[int]) -> Sizes:
        """Count learnt tokens, tokens, and pairs of tokens that attend to one another."""
        data, picked = self.examples, list(numbers)
        return Sizes(*(int(one[picked].sum()) for one in (data.learnt_counts, data.lengths, data.pairs)))

    def loss(self, engine: Any, batch: Mapping[str, Any], targets: float) -> Any:
        """Sum over the micro-batch's answer tokens, divided by `targets`."""
        if self._unchecked:
            # not in `build`: sharded weights are whole only in the engine's hands
            check_kept_apart(engine.module, varlen=self._varlen)
            self._unchecked = False
        # with a cache, transformers would not look for packed examples
        return engine(**batch, num_items_in_batch=targets, use_cache=False).loss

    def evaluate(self, model: Any, name: str) -> dict[str, Any] | None:
        """Measure loss and task score."""
        if not self.heldout:
            return None
        evaluator = Evaluator(
            self.heldout,
            tokenizer=self._tokenizer,
            ranks=self._ranks,
            score=self._config.data.score,
            micro_batch=settled(self._config.training.micro_batch, "training.micro_batch"),
            sharded=settled(self._config.zero.stage, "zero.stage") == 3,
        )
        return evaluator.run(model, name)

    def save(self, model: Any) -> None:
        """Write the adapter, or a whole model folder."""
        paths, method = self._job.paths, self._config.method
        if saves_adapters(method):
            save_adapter(model, paths.adapter, ranks=self._ranks)
            return
        how = {"ranks": self._ranks, "shard_bytes": int(self._config.export.shard_gb * GB)}
        if method.kind in ADAPTED:  # with train_base both are the result; `export` merges them
            save_trained_base(model, self._tokenizer, paths.trained_base, **how)
            save_adapter(model, paths.adapter, ranks=self._ranks, base=paths.trained_base)
        else:
            save_whole_model(model, self._tokenizer, paths.merged, **how)

    def describe(self) -> dict[str, Any]:
        """Return how many examples there are, and what they were made from."""
        return {"examples": len(self.examples), "data": self._told}
