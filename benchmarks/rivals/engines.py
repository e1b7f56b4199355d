"""Estimators that ship with the engines: DeepSpeed's and accelerate's."""

from __future__ import annotations

from benchmarks.rivals.models import largest_layer, meta_model, parameters
from benchmarks.rivals.rows import GIB, HALF, Rival, Row, one_gpu_only, refuse


def _outside_deepspeed(row: Row, stage: int) -> dict[str, bool]:
    return {
        f"not_stage_{stage}": row.zero_stage != stage,
        "counts_every_parameter_as_trained": row.method != "full",
        "16-bit_only": row.dtype not in HALF,
    }


def deepspeed_zero2(row: Row) -> float:
    """DeepSpeed's `estimate_zero2_model_states_mem_needs`.

    Scope: stage 2, every parameter trained, 16-bit. Predicts params, gradients and optimizer states per GPU, which
    are part of what is allocated. Left out by the tool: activations, logits, buckets.
    """
    refuse(**_outside_deepspeed(row, 2))
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    _, gpu = estimate_zero2_model_states_mem_needs(
        parameters(row.config),
        num_gpus_per_node=row.world_size,
        num_nodes=1,
        cpu_offload=row.offload_optimizer != "none",
    )
    return gpu / GIB


def deepspeed_zero3(row: Row) -> float:
    """DeepSpeed's `estimate_zero3_model_states_mem_needs`; scope and metric as at stage 2."""
    refuse(**_outside_deepspeed(row, 3))
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs

    _, gpu, _ = estimate_zero3_model_states_mem_needs(
        parameters(row.config),
        largest_layer(row.config),
        num_gpus_per_node=row.world_size,
        num_nodes=1,
        cpu_offload=row.offload_optimizer != "none",
        cpu_offload_params=row.offload_param != "none",
    )
    return gpu / GIB


def accelerate_memory(row: Row) -> float:
    """`accelerate estimate-memory`, column "Training using Adam".

    Scope: one GPU, full fine-tuning, float32 or 16-bit, a batch of one (so says the function's docstring). The
    command wants a hub id; here its functions get the model that it would build (`AutoModel`, so without the head).
    Predicts weights, gradients and optimizer, compared with what is allocated.
    """
    refuse(
        **one_gpu_only(row),
        not_a_full_fine_tune=row.method != "full",
        states_a_batch_of_one=row.micro_batch > 1,
    )
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    total, _ = calculate_maximum_sizes(meta_model(row.config, head=False))
    dtype = "float32" if row.dtype == "fp32" else "float16"
    return max(estimate_training_usage(total, dtype).values()) / GIB


RIVALS = [
    Rival("DeepSpeed ZeRO-2 estimator", "deepspeed", "allocated", deepspeed_zero2),
    Rival("DeepSpeed ZeRO-3 estimator", "deepspeed", "allocated", deepspeed_zero3),
    Rival("accelerate estimate-memory", "accelerate", "allocated", accelerate_memory),
]
