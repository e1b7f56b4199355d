"""SGLang's settings, process groups and model, made as one rank makes them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from planner.errors import NotSimulated
from planner.simulate.recorder import GPU


def settings(folder: Path, given: Mapping[str, Any]) -> Any:
    """Let SGLang settle what is left open, and publish it to its own code.

    Args:
        folder: holds config.json.
        given: arguments of its `ServerArgs`; those that this release does not have are left out.
    """
    from sglang.srt import runtime_context
    from sglang.srt.server_args import ServerArgs

    fixed = {"load_format": "dummy", "skip_tokenizer_init": True, "grammar_backend": "none", "random_seed": 1}
    known = getattr(ServerArgs, "__dataclass_fields__", None) or ServerArgs.__struct_fields__
    asked = {**fixed, **{name: value for name, value in given.items() if value is not None}}
    arguments = ServerArgs(
        model_path=str(folder), device="cuda", **{k: v for k, v in asked.items() if k in known}
    )
    if hasattr(arguments, "resolve_once"):
        arguments.resolve_once()
    place = getattr(runtime_context, "SpawnRanks", None)  # later releases want to know who publishes
    ranks = {} if place is None else {"ranks": place(world_rank=0, gpu_id=0)}
    runtime_context.publish(arguments, role="scheduler", **ranks)
    return arguments


def join(arguments: Any, model_config: Any, *, tp_size: int) -> None:
    """Make the process groups of rank 0, in which nobody else is."""
    import torch.distributed as dist
    from sglang.srt.distributed import bootstrap, parallel_state
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=tp_size)
    new_group = dist.new_group
    dist.new_group = lambda ranks=None, **_: new_group(ranks, backend="fake")
    parallel_state.set_custom_all_reduce(False)
    parallel_state.init_distributed_environment(world_size=tp_size, rank=0, local_rank=0, backend="fake")
    # the later releases read sizes and model from what is published
    _call(parallel_state.initialize_model_parallel, tensor_model_parallel_size=tp_size, backend="fake")
    _call(initialize_dp_attention, server_args=arguments, model_config=model_config)
    _call(getattr(bootstrap, "init_layer_runtime", None), model_config=model_config)


def _call(function: Any, **given: Any) -> None:
    if function is not None:
        known = inspect.signature(function).parameters
        function(**{name: value for name, value in given.items() if name in known})


def architectures(config: Any) -> list[str]:
    """Names of the model's class: as config.json says, else as transformers calls this family's."""
    if config.get("architectures"):
        return list(config["architectures"])
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    name = CAUSAL.get(config.get("model_type", ""))
    return [] if name is None else [name]


def model_class(architectures: list[str]) -> Any:
    """Import the one module of SGLang that holds a model; its registry imports all of them.

    Raises:
        NotSimulated: where no module has it.
    """
    from sglang.srt import models

    for module in pkgutil.iter_modules(models.__path__):
        file = Path(models.__path__[0]) / f"{module.name}.py"
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        for name in architectures:
            if re.search(rf"^class {re.escape(name)}\b", text, re.MULTILINE):
                return getattr(importlib.import_module(f"sglang.srt.models.{module.name}"), name)
    raise NotSimulated(f"SGLang has no model {', '.join(architectures)} of its own")


def build(arguments: Any, model_config: Any) -> Any:
    """Build the unquantised model as the engine's loader does that reads no file (`DummyModelLoader`)."""
    built = model_class(model_config.hf_config.architectures)
    before = torch.get_default_dtype()
    torch.set_default_dtype(model_config.dtype)
    try:
        with torch.device(GPU):
            model = built(config=model_config.hf_config, quant_config=None)
    finally:
        torch.set_default_dtype(before)
    if hasattr(model, "post_load_weights"):
        model.post_load_weights()
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is not None:
            method.process_weights_after_loading(module)
    return model.eval()


def configured(arguments: Any) -> Any:
    """SGLang's reading of the model's configuration."""
    from sglang.srt.configs.model_config import ModelConfig

    return ModelConfig.from_server_args(arguments)


def setting(arguments: Any, name: str) -> Any:
    """A setting as it was resolved: later releases keep that beside what was asked for."""
    try:
        from sglang.srt.arg_groups.overrides import resolution_result
    except ImportError:
        return getattr(arguments, name, None)
    return resolution_result(arguments, name)
