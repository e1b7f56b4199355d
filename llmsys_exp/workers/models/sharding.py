"""Models that are sharded while they are built: ZeRO stage 3, where no rank ever holds a whole model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def built_sharded(ds_config: dict[str, Any], *, quantised: bool = False) -> Iterator[None]:
    """Let transformers and peft build models under `deepspeed.zero.Init` where the stage shards weights.

    Both ask for the configuration that transformers keeps; they then gather what they initialise or load.
    That is also why a padding index does no harm: its row is zeroed in a gathered weight, where a bare
    `zero.Init` leaves OPT, Gemma and Phi-3 an empty one to index. Below stage 3 nothing happens.

    Packed weights cannot be built in shards: each rank loads all of them, and the engine shards them.
    """
    if quantised or ds_config.get("zero_optimization", {}).get("stage", 0) != 3:
        yield
        return
    # first imports of these inside zero.Init fail: it patches the tensor constructors that they run
    import peft
    import torch._dynamo
    from transformers.integrations import HfDeepSpeedConfig, deepspeed

    assert peft is not None and torch._dynamo is not None
    held = HfDeepSpeedConfig(ds_config)
    try:
        with _exact_arange():
            yield
    finally:
        del held  # transformers has but a weak reference
        deepspeed.unset_hf_deepspeed_config()


@contextmanager
def _exact_arange() -> Iterator[None]:
    """Keep the type of `torch.arange` inside `zero.Init`, as later versions of transformers do themselves.

    Else rotary frequencies are computed in 16 bit, and stage 3 trains another model than the other stages.
    """
    import torch
    from deepspeed.runtime.zero import partition_parameters as zero
    from transformers.integrations import deepspeed

    if hasattr(deepspeed, "prevent_arange_dtype_change"):
        yield
        return
    original, arange = zero.zero_wrapper_for_fp_tensor_constructor, torch.arange

    def wrap(function: Any, *, target_fp_dtype: Any, target_device: Any) -> Any:
        kept = None if function is arange else target_fp_dtype
        return original(function, target_fp_dtype=kept, target_device=target_device)

    zero.zero_wrapper_for_fp_tensor_constructor = wrap
    try:
        yield
    finally:
        zero.zero_wrapper_for_fp_tensor_constructor = original
