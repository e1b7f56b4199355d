"""Runs passes of a served model on shapes and says what was held at the highest moment of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from planner.memory.arena import Arena, Buffer
from planner.simulate.modules import ModuleNames
from planner.simulate.peak import largest_at_peak
from planner.simulate.recorder import Recorder
from planner.simulate.serving.batch import ShapedAttention, decode_batch, prefill_batch, sampling
from planner.simulate.serving.kernels import BODIES

aten = torch.ops.aten
WEIGHTS, POOL, TABLE, ACTIVATIONS, SCRATCH = "weights", "kv pool", "request table", "activations", "scratch"
SORTS = (aten.sort.default, aten.sort.stable)
SEGMENTS_APART = 128
SORT_SCRATCH = {"one": 20, "some": 32, "many": 20}
"""Bytes of an element of fp32. Source: torch 2.13 `cuda/SortStable.cu`, `cuda/cub.cuh`: indices (one pair of
int32 before and after, below 128 rows), and cub's own copies of keys and values."""
DRAWN_BYTES = 4
"""`multinomial` of one sample divides by as many exponential draws: `native/Distributions.cpp`."""


class ServingRecorder(Recorder):
    """A recorder that knows what CUDA's sort and multinomial take within themselves."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        body = BODIES.get(func._schema.name) if func.namespace not in ("aten", "prims") else None
        if body is not None:
            with self:
                return body(*args, **(kwargs or {}))
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func in SORTS:
            self.arena.new(_sort_bytes(args[0]), SCRATCH)
        elif func is aten.multinomial.default:
            self.arena.new(args[0].numel() * DRAWN_BYTES, SCRATCH)
        return out


def _sort_bytes(values: torch.Tensor) -> int:
    rows = values.numel() // max(1, values.shape[-1])
    kind = "one" if rows == 1 else "some" if rows < SEGMENTS_APART else "many"
    return values.numel() * SORT_SCRATCH[kind]


class ServedRun:
    """A model on the simulated GPU with its pool, through passes of the engine.

    Args:
        recorder: within which the model was built.
        model: SGLang's.
        backend: of attention.
        vocab: words that a token is picked from.
    """

    def __init__(self, recorder: Recorder, model: Any, *, backend: str, vocab: int) -> None:
        self.arena: Arena = recorder.arena
        self.modules = ModuleNames()
        self.modules.follow(model)
        recorder.where = self.modules.now
        self._recorder, self._model, self._vocab = recorder, model, vocab
        self._attention = ShapedAttention(model, backend)
        self._resident: list[Buffer] = []
        recorder.label = ACTIVATIONS

    def rest(self, sizes: dict[str, int]) -> None:
        """Take what lies beside the weights for good, by component."""
        self._resident += [self.arena.new(nbytes, name) for name, nbytes in sizes.items() if nbytes]

    def play(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Play one pass.

        Args:
            asked: its `kind`: `prefill` with the `tokens` of a chunk, or `decode` with `seen_tokens` of each
                request; its `requests`, and how it `picks` tokens: `greedy`, `temperature` or `top_p`.

        Returns:
            What rests when it begins, with what attention prepared for the last one; what it took beside that
            at the highest moment of the model and of picking tokens; the largest allocations of that moment.
        """
        requests = asked["requests"]
        if asked["kind"] == "prefill":
            batch = prefill_batch(tokens=asked["tokens"], requests=requests)
            return self._play(batch, batch.seq_lens, sampling(requests, self._vocab, picks=asked["picks"]))
        batch = decode_batch(requests=requests, seen_tokens=asked["seen_tokens"])
        return self._play(batch, batch.positions, sampling(requests, self._vocab, picks=asked["picks"]))

    def _play(self, batch: Any, positions: Any, how: Any) -> dict[str, Any]:
        from sglang.srt.layers.sampler import Sampler
        from sglang.srt.model_executor import forward_context as context

        rest = self.arena.allocator.allocated
        self.arena.forget_peak()
        with context.forward_context(context.ForwardContext(attn_backend=self._attention)):
            self._attention.prepare(batch)
            out = self._model.forward(batch.input_ids, batch.positions, batch)
        model_bytes, largest = self.arena.peak_bytes - rest, self._largest()
        self.arena.forget_peak()
        # the batch stands while its tokens are picked, and what attention prepared until the next one
        sampler = Sampler()
        rows = batch.batch_size
        picked = sampler(out, how, False, [0] * rows, [None] * rows, positions)
        sampler_bytes = self.arena.peak_bytes - rest
        if sampler_bytes > model_bytes:
            largest = self._largest()
        del picked, out
        return {
            "rests_bytes": rest,
            "model_bytes": model_bytes,
            "sampler_bytes": sampler_bytes,
            "largest": largest,
        }

    def _largest(self) -> list[dict[str, Any]]:
        rows = largest_at_peak(self._recorder, most=1_000)
        return [row.to_dict() for row in rows if row.component in (ACTIVATIONS, SCRATCH)][:10]
