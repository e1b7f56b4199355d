"""Makes what all rivals load: a model folder with random weights and a tokenizer, rows, and their tokens.

Rows have the lengths of instruction data: log-normal, cut at the longest that is trained on. A word is a
token, so lengths are exact, and every program that reads the rows gets the same tokens.
"""

from __future__ import annotations

import json
import random
from itertools import accumulate
from typing import Any

from benchmarks.train_rivals.job import Job
from llmsys_exp.workers.data.order import Order

PAD, END = "<pad>", "</s>"
WORDS = 8000
TINY = {"model_type": "llama", "vocab_size": 9000, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 2048, "tie_word_embeddings": True}  # fmt: skip
MEAN_LOG, SIGMA_LOG = 5.30, 0.70
"""Of the natural logarithm of a row's tokens: median 200, mean some 250, one row in twenty above 630."""
LEAST_TOKENS, LEAST_PROMPT = 24, 6
TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
)


def make_inputs(job: Job) -> None:
    """Write model folder, rows and tokens, unless they are there."""
    if job.tokens_folder.exists():
        return
    make_model(job)
    rows = make_rows(job)
    job.rows_file.write_text(json.dumps([{"instruction": p, "output": a} for p, a in rows]))
    make_tokens(job, rows)


def make_rows(job: Job) -> list[tuple[str, str]]:
    """Prompts and answers; the same for the same seed."""
    draw = random.Random(job.seed)
    weights = list(accumulate(1 / (rank + 3) for rank in range(WORDS)))
    names = [f"w{number}" for number in range(WORDS)]
    rows = []
    for _ in range(job.rows):
        wanted = int(draw.lognormvariate(MEAN_LOG, SIGMA_LOG))
        tokens = min(max(wanted, LEAST_TOKENS), job.max_length) - 1  # one for the end of the answer
        words = draw.choices(names, cum_weights=weights, k=tokens)
        prompt = max(LEAST_PROMPT, int(tokens * draw.uniform(0.1, 0.5)))
        rows.append((" ".join(words[:prompt]), " ".join(words[prompt:])))
    return rows


def make_tokens(job: Job, rows: list[tuple[str, str]]) -> None:
    """Tokenise and put into the order in which llmsys visits the rows in its first epoch."""
    from datasets import Dataset, DatasetDict
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(job.model_folder)
    order = Order(count=len(rows), micro_batch=job.micro_batch, grad_accum=1, world_size=1, seed=job.seed)
    columns: dict[str, list[Any]] = {"input_ids": [], "attention_mask": [], "labels": []}
    for step in range(len(rows) // job.micro_batch):
        for number in order.step(step):
            prompt, answer = (tokenizer(text)["input_ids"] for text in rows[number])
            ids = [*prompt, *answer, tokenizer.eos_token_id]
            columns["input_ids"].append(ids)
            columns["attention_mask"].append([1] * len(ids))
            columns["labels"].append([-100] * len(prompt) + ids[len(prompt) :])
    DatasetDict({"train": Dataset.from_dict(columns)}).save_to_disk(job.tokens_folder)


def make_model(job: Job) -> None:
    """Build the real shape with random weights, in the type that is trained in."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = dict(TINY) if job.model == "tiny" else _table_row(job.model)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        shape[name] = None  # those of the tokenizer made here
    shape["eos_token_id"] = 1
    config = AutoConfig.for_model(shape.pop("model_type"), **shape)
    torch.manual_seed(job.seed)
    with torch.device(job.device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16 if job.dtype == "bf16" else torch.float32
        )
    model.save_pretrained(job.model_folder)
    make_tokenizer().save_pretrained(job.model_folder)


def make_tokenizer() -> Any:
    """One token a word, with a chat template that adds nothing but the end of the answer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [PAD, END, "<unk>", *(f"w{number}" for number in range(WORDS))]
    words = Tokenizer(models.WordLevel({name: at for at, name in enumerate(names)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token=PAD, eos_token=END, unk_token="<unk>"
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _table_row(name: str) -> dict[str, Any]:
    from planner.tables import model_config

    return dict(model_config(name))
