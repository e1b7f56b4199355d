"""Run folders for a tiny random model, made the way the parent makes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from llmsys_exp.config.plain import from_plain, to_plain
from llmsys_exp.launch.ds_config import ds_config
from llmsys_exp.runs.paths import RunPaths

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COLOURS = ("red", "blue", "green", "white")
THINGS = ("lamp", "chair", "desk")
CHAT_TEMPLATE = (
    "{% for turn in messages %}<|im_start|>{{ turn['role'] }}\n{{ turn['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def rows() -> list[dict[str, str]]:
    """Return two dozen rows of different lengths."""
    return [
        {
            "instruction": "Say what and how many.",
            "input": f"{count} {colour} {thing}s please" + ", soon" * (count % 3),
            "output": f"item: {colour} {thing} | count: {count}",
        }
        for count in (2, 3)
        for colour in COLOURS
        for thing in THINGS
    ]


def make_model(folder: Path) -> None:
    """Write a random two-layer Llama with a tokenizer trained on the rows."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    specials = ["<|im_end|>", "<|im_start|>"]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=specials, initial_alphabet=alphabet)
    core.train_from_iterator((" ".join(row.values()) for row in rows()), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=specials[0], bos_token=specials[1])
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(7)
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=0,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(shape).save_pretrained(folder)


def make_job(
    folder: Path,
    model: Path,
    *,
    world_size: int = 1,
    device: str = "cpu",
    heldout: int | None = None,
    **settings: Any,
) -> RunPaths:
    """Write job.json and ds_config.json; settings are `group__key=value`, `heldout` rows are measured on."""
    folder.mkdir(parents=True)
    data, measured = folder / "rows.json", folder / "heldout.json"
    data.write_text(json.dumps(rows()), encoding="utf-8")
    measured.write_text(json.dumps(rows()[:heldout]), encoding="utf-8")
    plain = _plain_config(settings)
    resolved = {
        "model_folder": str(model),
        "train_file": str(data),
        "heldout_file": str(measured),
        "prompts_file": str(data),
        "world_size": world_size,
        "device": device,
    }
    paths = RunPaths(folder)
    job = {"schema_version": 1, "config": plain, "plan": {}, "resolved": resolved}
    paths.job.write_text(json.dumps(job), encoding="utf-8")
    paths.ds_config.write_text(json.dumps(_ds_config(plain, world_size, device)), encoding="utf-8")
    return paths


def _plain_config(settings: dict[str, Any]) -> dict[str, Any]:
    defaults = {
        "zero__stage": 2,
        "zero__reduce_bucket_size": 100_000,
        # the tiny weights would all stay gathered at DeepSpeed's default
        "zero__stage3_param_persistence_threshold": 100,
        "training__optimizer": "torch_adamw",
        "training__dtype": "fp32",
        "training__micro_batch": 2,
        "training__grad_accum": 2,
        "training__max_steps": 3,
        "training__learning_rate": 1e-2,
        "training__gradient_checkpointing": False,
        "training__evaluate": False,
        "data__score": "field_f1",
        "inference__batch_size": 9,
        "inference__sampling": {"max_new_tokens": 6},
    }
    plain = to_plain(from_plain({}))
    for path, value in (defaults | settings).items():
        group, _, key = path.partition("__")
        plain[group][key] = value
    return to_plain(from_plain(plain))


def _ds_config(plain: dict[str, Any], world_size: int, device: str) -> dict[str, Any]:
    """What the parent would write."""
    return ds_config(from_plain(plain), world_size=world_size, device=device)


def environment() -> dict[str, str]:
    """Return the environment of a worker, without ranks of ours."""
    found = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    search = os.pathsep.join((str(Path(sys.executable).parent), found.get("PATH", "")))
    return found | {
        "PATH": search,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), str(HERE), os.environ.get("PYTHONPATH")))),
    }


def run_worker(
    name: str, *arguments: Path, ranks: int | None = None, port: int = 0, timeout_s: int = 280
) -> subprocess.CompletedProcess:
    """Start a worker alone, or under the deepspeed runner."""
    command = [sys.executable]
    if ranks is not None:
        command += ["-m", "deepspeed.launcher.runner", "--num_gpus", str(ranks), "--no_local_rank"]
        command += ["--master_port", str(port), "--module", name]
    else:
        command += ["-m", name]
    return subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=timeout_s,
    )


def events_of(done: subprocess.CompletedProcess, kind: str) -> list[dict[str, Any]]:
    """Return a worker's events of one kind."""
    lines = (line for line in done.stdout.splitlines() if line.startswith("@llmsys "))
    return [event for event in map(json.loads, (line[8:] for line in lines)) if event["event"] == kind]
