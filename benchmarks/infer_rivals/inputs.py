"""Makes what all programs load: a model folder with a tokenizer, and prompts with the length of each answer.

The tokenizer is byte-level BPE learnt from the prompts, filled up to the model's vocabulary with words nobody
writes, so that whatever token random weights pick has a text. Lengths are log-normal, drawn once.

    python -m benchmarks.infer_rivals.inputs JOB.json
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from benchmarks.infer_rivals.job import Job

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = ROOT / "experiments/data/alpaca_prompts.json"
END, PAD = (
    "<|im_end|>",
    "<|endoftext|>",
)  # Qwen's names: its tokenizer class adds the second where it is missing
LEARNT_TOKENS = 6000
LEAST_TOKENS = 8
WORD = " of"
"""One token of the tokenizer, whatever stands before it: answers of a wanted length are made of it."""
TINY = {"model_type": "qwen2", "vocab_size": 8192, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "architectures": ["Qwen2ForCausalLM"]}  # fmt: skip


def make_inputs(job: Job) -> None:
    """Write everything below the job's folder."""
    rows = make_rows(job)
    tokenizer = make_tokenizer([row["instruction"] for row in rows], model_shape(job)["vocab_size"])
    job.model_folder.mkdir(parents=True)
    tokenizer.save_pretrained(job.model_folder)
    make_model(job)
    tokenizer = _as_others_load_it(job)
    job.prompts_file.write_text(json.dumps(rows), encoding="utf-8")
    conversations = [{"conversations": [{"value": row["instruction"]}, {"value": WORD * row["max_new_tokens"]}]}
                     for row in rows]  # fmt: skip
    for row, one in zip(rows, conversations, strict=True):
        length = len(tokenizer.encode(one["conversations"][1]["value"]))
        if length != row["max_new_tokens"]:
            raise SystemExit(f"an answer of {row['max_new_tokens']} tokens became {length}")
    job.conversations_file.write_text(json.dumps(conversations), encoding="utf-8")


def _as_others_load_it(job: Job) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(job.model_folder)
    known = model_shape(job)["vocab_size"]
    if len(tokenizer) != known:
        raise SystemExit(f"the tokenizer has {len(tokenizer)} tokens, the model {known}")
    return tokenizer


def make_rows(job: Job) -> list[dict[str, Any]]:
    """Return prompts in an order without pattern, and how many tokens each is answered with."""
    draw = random.Random(job.seed)
    texts = [row["instruction"] for row in json.loads(PROMPTS.read_text(encoding="utf-8"))]
    draw.shuffle(texts)
    rows = []
    for text in texts[: job.prompts]:
        wanted = round(job.median_tokens * draw.lognormvariate(0, job.spread))
        rows.append({"instruction": text, "max_new_tokens": min(max(wanted, LEAST_TOKENS), job.most_tokens)})
    return rows


def make_tokenizer(texts: list[str], vocabulary: int) -> Any:
    """Learn a tokenizer from the prompts and fill it up to the model's vocabulary."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=LEARNT_TOKENS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)  # fmt: skip
    learner.train_from_iterator([*texts, WORD * 1000], trainer)
    learnt = json.loads(learner.to_str())["model"]
    words = {**learnt["vocab"]}
    while len(words) < vocabulary - 2:  # the two special tokens come after
        words[f"Ġfiller{len(words)}"] = len(words)
    core = Tokenizer(models.BPE(words, [tuple(one) for one in learnt["merges"]]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(END, special=True), AddedToken(PAD, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=END, pad_token=PAD)


def model_shape(job: Job) -> dict[str, Any]:
    """Return the model's config.json; special tokens are those of the tokenizer made here."""
    if job.model == "tiny":
        shape = dict(TINY)
    else:
        from planner.tables import model_config

        shape = dict(model_config(job.model))
    shape |= {
        "bos_token_id": None,
        "eos_token_id": shape["vocab_size"] - 2,
        "pad_token_id": shape["vocab_size"] - 1,
    }
    # SGLang would bring an attention of its own for it, and prompts as short as these never need it
    shape.pop("dual_chunk_attention_config", None)
    return shape


def make_model(job: Job) -> None:
    """Write the shape; random weights only where an engine reads them from the disk."""
    shape = model_shape(job)
    if job.engine == "sglang":
        (job.model_folder / "config.json").write_text(json.dumps(shape, indent=1), encoding="utf-8")
        return
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(job.seed)
    config = AutoConfig.for_model(shape.pop("model_type"), **shape)
    dtype = getattr(torch, job.engine_dtype)
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(job.model_folder)


if __name__ == "__main__":
    make_inputs(Job.read(Path(sys.argv[1])))
