"""What SGLang's scheduler gives to a forward pass: a chunk of prompts, or a token of each running request."""

from __future__ import annotations

from typing import Any

import torch

from planner.simulate.recorder import GPU

KV_SPLITS = 8  # `triton_attention_num_kv_splits`
INDEX_TYPES = {"triton": torch.int64, "flashinfer": torch.int32}  # of one token; others index pages
FP32 = torch.float32


class ShapedPool:
    """The pool as model code sees it: one slot of each layer, as its room is counted apart."""

    page_size = 1

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._slots: dict[tuple[int, int], torch.Tensor] = {}

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        """The keys of a layer."""
        return self._slots[layer_id, 0]

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        """Its values."""
        return self._slots[layer_id, 1]

    def add(self, layer: Any) -> None:
        """Take a layer in."""
        widths = (layer.tp_k_head_num, layer.qk_head_dim), (layer.tp_v_head_num, layer.v_head_dim)
        for number, width in enumerate(widths):
            self._slots[layer.layer_id, number] = torch.empty((1, *width), dtype=self.dtype, device=GPU)


class ShapedAttention:
    """Attention whose keys and values lie in a pool: allocates as the backends do, and computes nothing.

    Source: SGLang 0.5.17 `layers/attention/triton_backend.py` (`forward_extend`, `forward_decode`,
    `init_forward_metadata`), `flashattention_backend.py`, `flashinfer_backend.py`.
    """

    def __init__(self, model: Any, backend: str) -> None:
        self._backend = backend
        self._layers = [one for one in model.modules() if type(one).__name__ == "RadixAttention"]
        self._held: list[torch.Tensor] = []
        self.token_to_kv_pool = ShapedPool(next(model.parameters()).dtype)
        for layer in self._layers:
            self.token_to_kv_pool.add(layer)

    def prepare(self, batch: Any) -> None:
        """Indices of what each request sees, and Triton's partial results of a decode step.

        Those of the last pass lie there until these are made.
        """
        fresh: list[torch.Tensor] = []
        if self._backend in INDEX_TYPES and batch.forward_mode.is_decode():
            fresh.append(torch.empty(batch.seq_lens_sum, dtype=INDEX_TYPES[self._backend], device=GPU))
            if self._backend == "triton" and self._layers:
                widest = max(self._layers, key=lambda one: one.tp_q_head_num * one.v_head_dim)
                shape = (batch.batch_size, widest.tp_q_head_num, KV_SPLITS)
                fresh.append(torch.empty((*shape, widest.v_head_dim), dtype=FP32, device=GPU))
                fresh.append(torch.empty(shape, dtype=FP32, device=GPU))
        self._held = fresh

    def forward(self, q: Any, k: Any, v: Any, layer: Any, *_: Any, **__: Any) -> torch.Tensor:
        """The output; what is written to the pool is there already."""
        if layer.qk_head_dim != layer.v_head_dim:
            return q.new_empty((q.shape[0], layer.tp_q_head_num * layer.v_head_dim))
        return torch.empty_like(q.reshape(-1, layer.tp_q_head_num * layer.qk_head_dim))


def _numbers(count: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.empty(count, dtype=dtype, device=GPU)


def _made(kind: Any, **given: Any) -> Any:
    """Releases differ in what a batch carries beside its shapes."""
    return kind(**{name: value for name, value in given.items() if name in kind.__dataclass_fields__})


def prefill_batch(*, tokens: int, requests: int) -> Any:
    """A chunk of so many tokens, of so many requests that have none in the pool yet."""
    lengths = [tokens // requests + (one < tokens % requests) for one in range(requests)]
    return _forward_batch(
        "EXTEND",
        tokens=tokens,
        requests=requests,
        seq_lens_sum=tokens,
        seq_lens_cpu=torch.tensor(lengths, device="cpu"),
        extend_num_tokens=tokens,
        extend_seq_lens=_numbers(requests, torch.int32),
        extend_prefix_lens=_numbers(requests, torch.int32),
        extend_start_loc=_numbers(requests, torch.int32),
        extend_prefix_lens_cpu=[0] * requests,
        extend_seq_lens_cpu=lengths,
        extend_logprob_start_lens_cpu=[0] * requests,
    )


def decode_batch(*, requests: int, seen_tokens: int) -> Any:
    """One token of each request; `seen_tokens` are those of a request in the pool, that one included."""
    return _forward_batch(
        "DECODE",
        tokens=requests,
        requests=requests,
        seq_lens_sum=requests * seen_tokens,
        seq_lens_cpu=torch.full((requests,), seen_tokens, device="cpu"),
    )


def _forward_batch(mode: str, *, tokens: int, requests: int, **more: Any) -> Any:
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

    return _made(
        ForwardBatch,
        forward_mode=ForwardMode[mode],
        batch_size=requests,
        input_ids=_numbers(tokens),
        req_pool_indices=_numbers(requests),
        seq_lens=_numbers(requests),
        out_cache_loc=_numbers(tokens),
        positions=_numbers(tokens),
        capture_hidden_mode=CaptureHiddenMode.NULL,
        num_token_non_padded_cpu=tokens,
        **more,
    )


def sampling(requests: int, vocab: int, *, picks: str) -> Any:
    """How tokens are picked.

    Args:
        requests: rows.
        vocab: words.
        picks: `greedy`, `temperature` or `top_p`.
    """
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    return _made(
        SamplingBatchInfo,
        temperatures=torch.empty((requests, 1), dtype=FP32, device=GPU),
        top_ps=_numbers(requests, FP32),
        top_ks=_numbers(requests, torch.int32),
        min_ps=_numbers(requests, FP32),
        is_all_greedy=picks == "greedy",
        is_any_greedy=picks == "greedy",
        need_top_p_sampling=picks == "top_p",
        need_top_k_sampling=False,
        need_min_p_sampling=False,
        vocab_size=vocab,
        device=GPU,
    )
