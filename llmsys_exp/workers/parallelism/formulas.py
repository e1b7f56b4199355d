"""What data, pipeline and tensor parallelism cost, in closed form, for a Llama-shaped decoder in fp32.

Bytes are those of one optimizer step and one rank. Activations are what autograd keeps for backward, as
transformers writes the model (`models/llama/modeling_llama.py`, 5.17 and 5.23) with sdpa attention on the
CPU.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

FP32_BYTES, INT64_BYTES = 4, 8
ADAM_MOMENTS = 2
MICRO_BATCHES = 4
"""Of the pipeline whose losses, bytes and memory are compared with the others'."""
ALL_REDUCES_PER_LAYER = 4
"""Tensor parallelism: two forward (after attention and feed-forward part), two backward (before each)."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder."""

    hidden: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int

    @classmethod
    def of(cls, config: Any) -> Shape:
        """Read a transformers configuration, or the mapping that it is written as."""
        read = config.get if isinstance(config, dict) else lambda key: getattr(config, key)
        keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        return cls(*(int(read(key)) for key in (*keys, "num_key_value_heads", "vocab_size")))

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads

    @property
    def block_matrices(self) -> int:
        """Weights of a block that tensor parallelism splits: q, k, v, o, gate, up, down."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_heads * self.head_dim
        return attention + 3 * self.hidden * self.feed_forward

    @property
    def block_norms(self) -> int:
        """Weights of a block that every rank keeps: two norms."""
        return 2 * self.hidden

    @property
    def ends(self) -> tuple[int, int]:
        """Weights of the embedding, and of the last norm with the output layer."""
        return self.vocab * self.hidden, self.hidden + self.vocab * self.hidden


@dataclass(frozen=True)
class Batch:
    """One step's sequences, and over how many ranks or micro-batches they are spread."""

    sequences: int
    length: int
    ranks: int
    micro_batches: int = 1

    @property
    def tokens(self) -> int:
        """Tokens of the whole step."""
        return self.sequences * self.length


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    def to_dict(self) -> dict[str, int]:
        """Return the JSON form."""
        return asdict(self)


def bubble_fraction(stages: int, micro_batches: int) -> float:
    """Share of a GPipe step in which a rank waits: (p - 1) / (m + p - 1).

    Source: GPipe (Huang et al. 2019), section 2.3.

    >>> [round(bubble_fraction(2, m), 3) for m in (1, 2, 4, 8)]
    [0.5, 0.333, 0.2, 0.111]
    """
    return (stages - 1) / (micro_batches + stages - 1)


def ring_bytes(payload_bytes: int, ranks: int) -> int:
    """Bytes that each rank sends in a ring all-reduce: 2 (n - 1) / n of the tensor.

    >>> ring_bytes(1000, 2), ring_bytes(900, 3)
    (1000, 1200)
    """
    return 2 * (ranks - 1) * payload_bytes // ranks


def data_payload_bytes(shape: Shape) -> int:
    """Bytes that data parallelism all-reduces in a step: every gradient once, whatever the batch."""
    return parameters(shape) * FP32_BYTES


def tensor_payload_bytes(shape: Shape, batch: Batch) -> int:
    """Bytes that tensor parallelism all-reduces in a step: activations, whatever the weights."""
    return ALL_REDUCES_PER_LAYER * shape.layers * boundary_bytes(shape, batch)


def boundary_bytes(shape: Shape, batch: Batch) -> int:
    """Bytes of the hidden states of all sequences: what crosses a pipeline boundary, once each way."""
    return batch.tokens * shape.hidden * FP32_BYTES


def pipeline_sent_bytes(shape: Shape, batch: Batch, *, stage: int) -> int:
    """Bytes that a stage sends in a step: activations to the next stage, gradients to the one before."""
    neighbours = (stage > 0) + (stage < batch.ranks - 1)
    return neighbours * boundary_bytes(shape, batch)


def parameters(shape: Shape) -> int:
    """Weights of the whole model."""
    return shape.layers * (shape.block_matrices + shape.block_norms) + sum(shape.ends)


def layers_of_stage(layers: int, stages: int, stage: int) -> range:
    """Layers of a pipeline stage: as even as it goes, the earlier stages first.

    >>> layers_of_stage(8, 3, 0), layers_of_stage(8, 3, 2)
    (range(0, 3), range(6, 8))
    """
    each, more = divmod(layers, stages)
    first = stage * each + min(stage, more)
    return range(first, first + each + (stage < more))


def one_rank_memory(shape: Shape, batch: Batch) -> Memory:
    """Everything on one rank."""
    blocks = shape.layers * block_activation_bytes(shape, batch.tokens)
    return _memory(parameters(shape), blocks + _ends_bytes(shape, batch))


def data_memory(shape: Shape, batch: Batch) -> Memory:
    """The whole model, and activations of a share of the sequences."""
    mine = Batch(batch.sequences // batch.ranks, batch.length, batch.ranks)
    return one_rank_memory(shape, mine)


def pipeline_memory(shape: Shape, batch: Batch, *, stage: int) -> Memory:
    """Some of the layers, and their activations of all sequences: GPipe runs every forward pass first."""
    layers = len(layers_of_stage(shape.layers, batch.ranks, stage))
    first, last = stage == 0, stage == batch.ranks - 1
    weights = layers * (shape.block_matrices + shape.block_norms)
    weights += (shape.ends[0] if first else 0) + (shape.ends[1] if last else 0)
    kept = layers * block_activation_bytes(shape, batch.tokens)
    return _memory(weights, kept + _ends_bytes(shape, batch, first=first, last=last))


def tensor_memory(shape: Shape, batch: Batch) -> Memory:
    """A share of each matrix, and of the activations between a column-split and a row-split matrix."""
    weights = shape.layers * (shape.block_matrices // batch.ranks + shape.block_norms) + sum(shape.ends)
    blocks = shape.layers * block_activation_bytes(shape, batch.tokens, split=batch.ranks)
    return _memory(weights, blocks + _ends_bytes(shape, batch))


def block_activation_bytes(shape: Shape, tokens: int, *, split: int = 1) -> int:
    """Bytes that one block keeps for backward.

    Each norm keeps its input, the normalised input, its output and one number a token. Attention keeps
    queries, keys, values, its output and one number a head and token; the feed-forward part keeps gate,
    activated gate, up and their product. `split` ranks share what lies between column-split and row-split
    matrices.
    """
    norms = 2 * (3 * shape.hidden + 1)
    attention = 2 * shape.hidden + 2 * shape.kv_heads * shape.head_dim + shape.heads
    feed_forward = 4 * shape.feed_forward
    return tokens * FP32_BYTES * (norms + (attention + feed_forward) // split)


def _ends_bytes(shape: Shape, batch: Batch, *, first: bool = True, last: bool = True) -> int:
    """Bytes kept outside the blocks: token ids, rotary tables of each micro-batch, last norm, log-softmax."""
    rotary = 2 * batch.length * shape.head_dim * FP32_BYTES * batch.micro_batches
    ids = batch.tokens * INT64_BYTES if first else 0
    if not last:
        return rotary + ids
    predicted = batch.sequences * (batch.length - 1)
    norm = batch.tokens * (3 * shape.hidden + 1) * FP32_BYTES
    loss = predicted * (shape.vocab * FP32_BYTES + INT64_BYTES) + batch.micro_batches * FP32_BYTES
    return rotary + ids + norm + loss


def _memory(weights: int, activation_bytes: int) -> Memory:
    stored = weights * FP32_BYTES
    return Memory(stored, stored, ADAM_MOMENTS * stored, activation_bytes)
