"""Sequences that several ranks share: DeepSpeed's Ulysses around the attention of transformers.

Source: DeepSpeed 0.19.8 `runtime/sequence_parallel/ulysses_sp.py: UlyssesSPAttentionHF`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest import mock

from planner.errors import CaseError
from planner.training_case import TrainingCase

GROUPS = ("_SEQUENCE_PARALLEL_GROUP", "_SEQUENCE_DATA_PARALLEL_GROUP")


@contextmanager
def sharing(case: TrainingCase) -> Iterator[None]:
    """Put back afterwards what `share_sequences` changes for good."""
    if case.sequence_parallel == 1:
        yield
        return
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    state = import_module("deepspeed.runtime.sequence_parallel.parallel_state_sp")
    layer = import_module("deepspeed.sequence.layer")
    with (
        mock.patch.multiple(state, **dict.fromkeys(GROUPS)),
        mock.patch.dict(layer._all_to_all_groups),
        mock.patch.dict(ALL_ATTENTION_FUNCTIONS._local_mapping),
    ):
        yield


def share_sequences(case: TrainingCase, model: Any) -> Any:
    """Let attention gather whole sequences for a share of the heads.

    Returns:
        The groups of ranks that `deepspeed.initialize` is given; None where each rank has its own sequences.

    Raises:
        CaseError: for attention that Ulysses does not take, with DeepSpeed's reason.
    """
    if case.sequence_parallel == 1:
        return None
    ulysses = import_module("deepspeed.runtime.sequence_parallel.ulysses_sp")
    try:
        return ulysses.UlyssesSPAttentionHF.register_with_transformers(
            model_name_or_path=model,
            core_attn_implementation=case.attention,
            sequence_parallel_size=case.sequence_parallel,
            micro_batch_size=case.micro_batch,
        )
    except ValueError as error:
        raise CaseError(f"sequence_parallel: {error}") from error
