"""Published rules of thumb that need the number of parameters only."""

from __future__ import annotations

from benchmarks.rivals.models import parameters
from benchmarks.rivals.rows import GIB, HALF, OutOfScope, Rival, Row, one_gpu_only, refuse


def eighteen_bytes(row: Row) -> float:
    """18 bytes a parameter: mixed-precision AdamW, activations apart.

    Scope: full fine-tuning in bf16 or fp16. 2 weights + 4 master + 4 gradient + 8 moments; all of it on every GPU
    at stage 0, a share of it at stage 3. The rule names no stage between. Predicts model states, which are part of
    what is allocated. Left out by the rule: activations, logits, buffers.
    """
    shared = row.world_size > 1 and row.zero_stage in (1, 2)
    refuse(
        not_a_full_fine_tune=row.method != "full",
        not_16_bit=row.dtype not in HALF,
        offload=row.offloads,
        stages_1_and_2_share_only_a_part=shared,
    )
    ranks = row.world_size if row.zero_stage == 3 else 1
    return 18 * parameters(row.config) / ranks / GIB


def llama_factory_table(row: Row) -> float:
    """LLaMA-Factory's hardware table: GB per billion parameters by method (README, August 2026).

    Scope: one GPU; full in bf16/fp16 mixed precision 18, freeze and LoRA 2, 8-bit 1, 4-bit 0.5. The table is what a
    card must have, so it is compared with the memory of the process. Left out: batch, length, everything else.
    """
    reasons = one_gpu_only(row) | {"part_of_the_layers_trained": False}
    refuse(**reasons, not_16_bit=row.dtype not in HALF)
    per_billion = {"full": 18.0, "freeze": 2.0, "lora": 2.0}.get(row.method)
    if per_billion is None:
        per_billion = {8: 1.0, 4: 0.5}.get(row.quantization["bits"])
    if per_billion is None:
        raise OutOfScope("no line of the table")
    return parameters(row.config) * per_billion / GIB  # GB per billion = bytes a parameter


RIVALS = [
    Rival("18 bytes a parameter", "", "allocated", eighteen_bytes, "rule"),
    Rival("LLaMA-Factory table", "", "process", llama_factory_table, "2026-08"),
]
