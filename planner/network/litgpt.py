"""What LitGPT does otherwise than transformers: attention, the loss, and what its loop's names hold.

Sources: LitGPT at commit 00af8b0 (September 2024), `model.py: CausalSelfAttention`, `lora.py: GPT.forward`,
`utils.py: chunked_cross_entropy`, `finetune/lora.py` and `finetune/full.py: fit`; Lightning Fabric
`plugins/precision/half.py: convert_output`, which makes the logits fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.architecture.spec import Architecture
from planner.memory.arena import Buffer
from planner.tape import ops
from planner.tape.autograd import Gradients, Tape, Tensor

if TYPE_CHECKING:
    from planner.network.run import ForwardPass

CHUNK_TOKENS = 128
FP32 = 4
REAL_TOKENS = 1 << 60  # longer ones stand for a polynomial (`planner/grid`) and are not cut


def litgpt_architecture(arch: Architecture) -> Architecture:
    """The same shape in LitGPT's modules: one projection for q, k and v, and no mask in any family."""
    return replace(
        arch,
        fused_qkv=arch.fused_qkv or "qkv_proj",
        always_masked=False,
        copied_keys=False,
        spread_keys=False,
    )


def litgpt_loss(forward: ForwardPass, hidden: Tensor) -> Tensor:
    """Cross entropy in chunks over fp32 logits.

    With adapters the output layer runs in chunks of 128 positions of the whole batch, else at once and the
    loss in chunks of 128 rows. The name `logits` holds the fp32 logits until the next forward pass is over.
    """
    tape = forward.tape
    in_chunks = forward.case.lora is not None
    parts = pieces(tape, hidden, _cuts(forward, hidden)) if in_chunks else [hidden]
    narrow = [_head(forward, part) for part in parts]
    wide = [ops.cast(tape, logits, FP32) for logits in narrow]
    del narrow, parts
    forward.earlier_logits[:] = [logits.buffer for logits in wide]
    chunks = wide if in_chunks else _rows(forward, wide[0])
    return _joined(tape, [_cross_entropy(tape, chunk) for chunk in chunks])


def _head(forward: ForwardPass, x: Tensor) -> Tensor:
    logits = forward.plain_linear(forward.network.output, x)
    if forward.arch.logit_softcap and forward.case.lora is None:  # the head in chunks leaves it out
        logits = ops.scale(forward.tape, logits)
        logits = ops.scale(forward.tape, ops.saves_output(forward.tape, logits))
    return logits


def _cuts(forward: ForwardPass, hidden: Tensor) -> list[int]:
    """Elements of each chunk of positions."""
    positions = forward.case.seq_len
    per_position = hidden.numel // positions
    return [per_position * length for length in _lengths(positions)]


def _lengths(total: int) -> list[int]:
    if total > REAL_TOKENS:
        return [total]
    whole, rest = divmod(total, CHUNK_TOKENS)
    return [CHUNK_TOKENS] * whole + ([rest] if rest else [])


def _rows(forward: ForwardPass, logits: Tensor) -> list[Tensor]:
    """All positions but the last of each sequence; of several sequences that is a copy."""
    batch, vocab = forward.case.micro_batch, forward.network.output.weight.shape[0]
    rows = logits.numel // vocab - batch
    tape = forward.tape
    if batch > 1:
        shifted = ops.rearrange(tape, logits, numel=rows * vocab)
    else:  # a view, whose gradient is padded with zeros
        shifted = Tensor(logits.buffer, rows * vocab, logits.itemsize)
        nbytes, new = logits.nbytes, tape.arena.new
        tape.attach(shifted, lambda _: [new(nbytes, ops.ACTIVATION_GRADIENTS)], [logits])
    return pieces(tape, shifted, [length * vocab for length in _lengths(rows)])


def pieces(tape: Tape, x: Tensor, numels: Sequence[int]) -> list[Tensor]:
    """Views of parts of x in a row; their gradients wait for each other and are then put together."""
    parts = [Tensor(x.buffer, numel, x.itemsize) for numel in numels]
    arrived: list[Buffer] = []
    nbytes, new = x.nbytes, tape.arena.new

    def keep(gradient: Buffer) -> Gradients:
        arrived.append(gradient)
        return [None]

    def join(gradient: Buffer) -> Gradients:
        arrived.append(gradient)
        whole = new(nbytes, ops.ACTIVATION_GRADIENTS)
        arrived.clear()
        return [whole]

    for number, part in enumerate(parts):  # the first one's node runs last
        if tape.recording and x.needs_grad:
            tape.attach(part, keep if number else join, [x])
    return parts


def _cross_entropy(tape: Tape, logits: Tensor) -> Tensor:
    """Log-softmax, which saves its output, and one loss a token."""
    log_probabilities = ops.saves_output(tape, logits)
    nbytes, new, loss = log_probabilities.nbytes, tape.arena.new, tape.tensor(1, FP32)
    return tape.attach(loss, lambda _: [new(nbytes, ops.ACTIVATION_GRADIENTS)], [log_probabilities])


def _joined(tape: Tape, losses: list[Tensor]) -> Tensor:
    count, new = len(losses), tape.arena.new
    total = tape.tensor(1, FP32)
    return tape.attach(total, lambda _: [new(FP32, ops.ACTIVATION_GRADIENTS) for _ in range(count)], losses)
