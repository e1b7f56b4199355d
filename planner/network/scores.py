"""Losses of alignment jobs: log-probabilities of given tokens, and values.

Sources: trl at commit f2cd577 (July 2026), `trainer/utils.py: selective_log_softmax`,
`trainer/dpo_trainer.py: _compute_loss`, `trainer/grpo_trainer.py: _get_per_token_logps_and_entropies`;
DeepSpeed-Chat (DeepSpeedExamples at commit 5ff0211), `rlhf/ppo_trainer.py: gather_log_probs, train_rlhf`.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.memory.arena import Buffer
from planner.network.litgpt import pieces
from planner.network.run import ForwardPass
from planner.tape import ops
from planner.tape.autograd import Tape, Tensor

FP32 = 4
TRL, CHAT, VALUES = "trl_log_probs", "chat_log_probs", "values"
Made = tuple[Tensor, list[Tensor]]


def scored(forward: ForwardPass, hidden: Tensor) -> Made:
    """The loss that `case.loss` names, and the logits that a name holds beside it."""
    logits = head(forward, hidden)
    if forward.case.loss == VALUES:
        return _total(forward.tape, [logits]), []
    by_row = forward.case.loss == TRL
    rows = forward.case.micro_batch if by_row else 1
    return log_probabilities(forward.tape, logits, rows=rows), [logits]


def head(forward: ForwardPass, hidden: Tensor) -> Tensor:
    """The output layer over the positions that are wanted (`logits_to_keep`)."""
    wanted = forward.case.logits_to_keep
    if not wanted:
        return forward.plain_linear(forward.network.output, hidden)
    kept = hidden.numel // forward.case.seq_len * wanted
    part = Tensor(hidden.buffer, kept, hidden.itemsize)
    if forward.tape.recording and hidden.needs_grad:
        forward.tape.attach(part, _padded(forward.tape, hidden.nbytes), [hidden])
    return forward.plain_linear(forward.network.output, part)


def log_probabilities(tape: Tape, logits: Tensor, *, rows: int) -> Tensor:
    """Log-softmax of all positions but the last; trl does one row after the other.

    A slice of a gradient is padded with zeros to the full size; those of rows are stacked.
    """
    shifted = Tensor(logits.buffer, logits.numel, logits.itemsize)
    if not (tape.recording and logits.needs_grad):
        for row in pieces(tape, shifted, [logits.numel // rows] * rows):
            ops.saves_output(tape, row)
        return tape.tensor(1, FP32)
    tape.attach(shifted, _padded(tape, logits.nbytes), [logits])
    parts = pieces(tape, shifted, [logits.numel // rows] * rows) if rows > 1 else [shifted]
    return _total(tape, [_log_softmax(tape, part) for part in parts])


def _log_softmax(tape: Tape, logits: Tensor) -> Tensor:
    """16-bit logits: log-softmax saves its output, and two gradients of its size meet for a moment."""
    picked = tape.tensor(1, FP32)
    nbytes, new = logits.nbytes, tape.arena.new
    probabilities = ops.saves_output(tape, logits)
    return tape.attach(picked, lambda _: [new(nbytes, ops.ACTIVATION_GRADIENTS)], [probabilities])


def _padded(tape: Tape, nbytes: int) -> Callable[[Buffer], list[Buffer | None]]:
    return lambda _gradient: [tape.arena.new(nbytes, ops.ACTIVATION_GRADIENTS)]


def _total(tape: Tape, parts: list[Tensor]) -> Tensor:
    total, new = tape.tensor(1, FP32), tape.arena.new
    sizes = [part.nbytes for part in parts]
    return tape.attach(total, lambda _: [new(n, ops.ACTIVATION_GRADIENTS) for n in sizes], parts)
