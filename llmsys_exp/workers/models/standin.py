"""A tokenizer for models that have none: byte-level BPE, trained on the rows of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmsys_exp.config.folders import shipped_path
from llmsys_exp.errors import UserError
from llmsys_exp.workers import events
from llmsys_exp.workers.files import whole_folder
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.models.shape import model_shape

END, START, PAD = "<|im_end|>", "<|im_start|>", "<|pad|>"
BYTES = 256
LARGEST_VOCABULARY = 8192
LEARNT_FROM_CHARACTERS = 1_000_000
TEXT_FILES = (".json", ".jsonl", ".csv", ".txt")
SHIPPED_TEXT = "shipped:data/order_book_train.json"
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def standin_tokenizer(job: Job) -> Any:
    """Return the run's stand-in: made once, kept in the run folder, the same for every later step."""
    from torch import distributed
    from transformers import PreTrainedTokenizerFast

    folder = job.paths.tokenizer
    together = distributed.is_available() and distributed.is_initialized()
    if not folder.is_dir() and (not together or distributed.get_rank() == 0):
        tokenizer = _train(job)
        with whole_folder(folder) as temporary:
            tokenizer.save_pretrained(temporary)
        events.note(f"The model has no tokenizer: one of {len(tokenizer)} tokens was made from the data.")
    if together:
        distributed.barrier()
    # another node may not see the folder; the same text gives the same tokenizer
    return PreTrainedTokenizerFast.from_pretrained(folder) if folder.is_dir() else _train(job)


def _train(job: Job) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_vocabulary(job),
        special_tokens=[END, START, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_text(job).splitlines(), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=END, pad_token=PAD)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _vocabulary(job: Job) -> int:
    known = model_shape(job).get_text_config().vocab_size
    least = BYTES + len((END, START, PAD))
    if known < least:
        raise UserError(
            f"The model knows {known} tokens, a stand-in tokenizer has at least {least}",
            where="model.weights=random",
            do="Set model.tokenizer to a tokenizer that fits",
        )
    return min(known, LARGEST_VOCABULARY)


def _text(job: Job) -> str:
    file = job.resolved.train_file
    if file is None or not Path(file).is_file() or Path(file).suffix not in TEXT_FILES:
        file = shipped_path(SHIPPED_TEXT)
    with Path(file).open(encoding="utf-8", errors="replace") as opened:
        return opened.read(LEARNT_FROM_CHARACTERS)
