"""A language model that learns to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmsys_exp.config.schema import MethodKind
from llmsys_exp.workers import events
from llmsys_exp.workers.data.collate import collate
from llmsys_exp.workers.data.encode import Example, encode
from llmsys_exp.workers.data.rows import DataError, read_rows
from llmsys_exp.workers.job import Job, settled
from llmsys_exp.workers.methods import apply_method
from llmsys_exp.workers.models.kernels import use_liger
from llmsys_exp.workers.models.load import load_base_model
from llmsys_exp.workers.models.tokenizer import check_vocabulary, load_tokenizer
from llmsys_exp.workers.ranks import Ranks
from llmsys_exp.workers.scores import check_score
from llmsys_exp.workers.training.evaluate import Evaluator
from llmsys_exp.workers.training.saving import save_adapter, save_whole_model


class CausalLm:
    """Supervised fine-tuning: next-token loss on answers."""

    def __init__(self, job: Job, ranks: Ranks) -> None:
        self._job, self._ranks, self._config = job, ranks, job.config
        self._tokenizer = load_tokenizer(job)
        self.examples, self.heldout = self._load_data()

    def build(self) -> Any:
        """Load the model, put kernels and adapters on, and set checkpointing."""
        model = load_base_model(self._job, device=self._ranks.device)
        check_vocabulary(model, self._tokenizer)
        if self._config.training.liger:
            use_liger(model, self._job)
        checkpointing = settled(
            self._config.training.gradient_checkpointing, "training.gradient_checkpointing"
        )
        return apply_method(model, self._config.method, checkpointing=checkpointing)

    def collate(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Pad to one width."""
        return collate(
            examples, pad_id=self._tokenizer.pad_token_id, train_on_prompt=self._config.data.train_on_prompt
        )

    def targets(self, examples: Sequence[Example]) -> int:
        """Count the tokens that are learnt."""
        on_prompt = self._config.data.train_on_prompt
        return sum(one.label_count(train_on_prompt=on_prompt) for one in examples)

    def tokens(self, examples: Sequence[Example]) -> int:
        """Count tokens without padding."""
        return sum(len(one.ids) for one in examples)

    def loss(self, engine: Any, batch: Mapping[str, Any], targets: float) -> Any:
        """Sum over the micro-batch's answer tokens, divided by `targets`."""
        return engine(**batch, num_items_in_batch=targets).loss

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
        if self._config.method.kind in (MethodKind.lora, MethodKind.qlora):
            save_adapter(model, self._job.paths.adapter, ranks=self._ranks)
        else:
            save_whole_model(model, self._tokenizer, self._job.paths.merged, ranks=self._ranks)

    def describe(self) -> dict[str, Any]:
        """Return how many examples there are."""
        return {"examples": len(self.examples)}

    def _load_data(self) -> tuple[list[Example], list[Example]]:
        files, data = self._job.resolved, self._config.data
        if files.train_file is None:
            raise DataError("There is no training file", where="data.train")
        train = self._encode(read_rows(files.train_file, data.columns, limit=data.limit))
        if files.heldout_file is None or not self._config.training.evaluate:
            return train, []
        check_score(data.score)
        return train, self._encode(read_rows(files.heldout_file, data.columns))

    def _encode(self, rows: Any) -> list[Example]:
        examples, notes = encode(self._tokenizer, rows, max_length=self._config.data.max_length)
        for note in notes:
            events.note(note)
        return examples
