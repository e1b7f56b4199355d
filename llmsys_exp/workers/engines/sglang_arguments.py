"""What SGLang is started with for a job, in our own names; `sglang_host` finds those of the release."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import AUTO, Dtype, Weights
from llmsys_exp.errors import UserError
from llmsys_exp.workers import events
from llmsys_exp.workers.engines.model_names import same_model
from llmsys_exp.workers.job import Job, settled
from llmsys_exp.workers.models.hub import hub_arguments
from llmsys_exp.workers.models.shape import is_shape_alone

ADAPTER = "adapter"
"""Name of a served adapter inside SGLang."""
DUAL_CHUNK = "dual_chunk_attention_config"
DUAL_CHUNK_NOTE = (
    "The model's dual chunk attention is switched off (json_model_override_args): SGLang has no backend for "
    "it beside the prefix cache, and below the trained length the arithmetic is the same"
)
WARM_UP = {"cpu": (1, 8, 2), "cuda": (16, 256, 16)}
"""Prompts, tokens of each and new tokens before anything is timed, by device."""
DTYPES = {Dtype.fp32: "float32", Dtype.fp16: "float16", Dtype.bf16: "bfloat16"}
CPU = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_overlap_schedule": True,
}
"""SGLang on a CPU without AMX; slow, and the same scheduler, cache and protocol."""
IGNORED = (
    "use_dora",
    "use_rslora",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "trainable_token_indices",
)
"""Settings of an adapter that change its output. Source: SGLang 0.5.17, 0.5.23 `srt/lora/lora_config.py`
and `lora.py`: the scale is lora_alpha / r throughout, and only DoRA is refused there."""
_NOT_ARGUMENTS = ("python", "arguments", "start_timeout_s")


def python_of(job: Job) -> str:
    """Return the interpreter that holds SGLang: the parent's choice, the setting, or ours."""
    told = (job.serving or {}).get("python") or job.config.inference.sglang.python
    return str(Path(told).expanduser()) if told else sys.executable


def further_arguments(job: Job) -> dict[str, Any]:
    """Return the user's further arguments, in SGLang's own names."""
    return dict(_settings(job).get("arguments") or {})


def adapter_of(job: Job) -> Path | None:
    """Return the folder of the adapter that is served over the base, if one is."""
    told = (job.serving or {}).get("adapter") or job.resolved.adapter_folder
    return Path(told) if told else None


def engine_arguments(job: Job, source: str) -> dict[str, Any]:
    """Return everything that an engine of this job starts with, beside the user's further arguments.

    Args:
        job: The run, with every setting settled.
        source: Folder or hub id of the model.
    """
    settings = {
        name: _settled(value, name)
        for name, value in _settings(job).items()
        if name not in _NOT_ARGUMENTS and name != ADAPTER
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    on_cpu = job.resolved.device == "cpu"
    return {
        **(CPU if on_cpu else {}),
        **settings,
        "model_path": source,
        "revision": job.config.model.revision,
        "trust_remote_code": job.config.model.trust_remote_code,
        "dtype": DTYPES[settled(job.config.training.dtype, "training.dtype")],
        "load_format": "dummy" if _is_random(job, source) else None,
        # SGLang draws a new seed at each start when it gets none
        "random_seed": job.config.seed,
        "enable_metrics": True,  # tells when the first token came
        "log_level": "info",  # its words are all there is to read after a failure
        **_adapter_arguments(job, source),
        **_overrides(job, source),
    }


def warm_up(job: Job, arguments: dict[str, Any]) -> tuple[int, int, int]:
    """Return prompts, tokens and new tokens of a first call, within the context."""
    prompts, tokens, new = WARM_UP["cpu" if job.resolved.device == "cpu" else "cuda"]
    room = arguments.get("context_length")
    return (prompts, tokens, new) if room is None or room > tokens + new else (prompts, 1, 1)


def environment(job: Job, arguments: dict[str, Any]) -> dict[str, str]:
    """Return variables that SGLang's process needs beside ours."""
    if job.resolved.device != "cpu":
        return {}
    variables = {"SGLANG_USE_CPU_ENGINE": "1"}
    ranks = (arguments.get("dp_size") or 1) * (arguments.get("tp_size") or 1)
    if ranks > 1:
        variables["SGLANG_CPU_OMP_THREADS_BIND"] = _cores(ranks)
    return {name: value for name, value in variables.items() if name not in os.environ}


def source_of_shape(job: Job, folder: Path) -> str:
    """Write the configuration of a model that is a shape alone, and return its folder."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    import planner

    shape = dict(planner.model_config(str(job.config.model.entry)))
    shape["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[shape["model_type"]]]
    (folder / "config.json").write_text(json.dumps(shape, indent=1), encoding="utf-8")
    return str(folder)


def _settings(job: Job) -> dict[str, Any]:
    told = (job.serving or {}).get("arguments")
    return dict(told) if told is not None else asdict(job.config.inference.sglang)


def _settled(value: Any, name: str) -> Any:
    # SGLang's own word for the model's type
    return value if name == "kv_cache_dtype" and value == AUTO else settled(value, f"inference.sglang.{name}")


def _is_random(job: Job, source: str) -> bool:
    return job.config.model.weights is Weights.random and (source == job.model_source or is_shape_alone(job))


def _overrides(job: Job, source: str) -> dict[str, Any]:
    if _model_config(job, source).get(DUAL_CHUNK) is None:
        return {}
    events.note(DUAL_CHUNK_NOTE)
    return {"json_model_override_args": json.dumps({DUAL_CHUNK: None})}


def _model_config(job: Job, source: str) -> dict[str, Any]:
    """Return the model's `config.json`; nothing of one that SGLang will not find either, and say so."""
    folder = Path(source)
    try:
        if folder.is_dir():  # without the seconds that transformers takes to load
            return json.loads((folder / "config.json").read_text(encoding="utf-8"))
        from transformers import PretrainedConfig

        return PretrainedConfig.get_config_dict(source, **hub_arguments(job))[0]
    except (OSError, ValueError):
        return {}


def _adapter_arguments(job: Job, source: str) -> dict[str, Any]:
    folder = adapter_of(job)
    if folder is None:
        return {}
    if job.resolved.device == "cpu":
        raise UserError(
            "SGLang serves adapters on a GPU only",
            where="inference.engine",
            why="It pins memory for them",
            do="Merge the adapter first (llmsys export RUN), or use inference.engine=transformers",
        )
    check_adapter(folder, base=source, base_name=job.config.model.id)
    return {"enable_lora": True, "lora_paths": [f"{ADAPTER}={folder}"], "max_loras_per_batch": 1}


def check_adapter(folder: Path, *, base: str, base_name: str) -> None:
    """Refuse an adapter of another base, by the name that it bears, or that SGLang would serve wrongly."""
    file = folder / "adapter_config.json"
    try:
        described = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError("There is no adapter here", where=str(file), do="Give a folder of peft") from None
    except json.JSONDecodeError as error:
        raise UserError(
            "The adapter's description is not valid JSON", where=f"{file}:{error.lineno}"
        ) from None
    named = described.get("base_model_name_or_path")
    if named and not any(same_model(named, one) for one in (base, base_name)):
        raise UserError(
            f"The adapter belongs to {named}, and the base is {base_name} ({base})",
            where=str(file),
            why="On another base its numbers mean nothing",
            do="Serve it with the model it was trained on: set model to that one",
        )
    ignored = [name for name in IGNORED if described.get(name)]
    ignored += ["bias"] if described.get("bias", "none") != "none" else []
    if described.get("peft_type", "LORA") != "LORA" or ignored:
        raise UserError(
            f"SGLang cannot serve this adapter: it has {', '.join(ignored) or described['peft_type']}",
            where=str(file),
            why="SGLang takes no notice of that, and its answers would be those of another model",
            do="Merge the adapter first (llmsys export RUN) and serve the merged model",
        )


def _cores(ranks: int) -> str:
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // ranks)
    parts = [cores[at * share % len(cores) :][:share] for at in range(ranks)]
    return "|".join(",".join(map(str, one)) for one in parts)
