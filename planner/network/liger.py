"""Liger's kernels in training: what each keeps for backward, overwrites and allocates.

Which of them a family gets says `planner/liger.py`. Each is an autograd function: it saves when its output is
there already, and copies inputs and gradients that do not lie evenly (`ops/utils.py: ensure_contiguous`).
Source: liger-kernel 0.8.5 `ops/rms_norm.py`, `swiglu.py`, `geglu.py`, `rope.py`.
"""

from __future__ import annotations

from planner.liger import liger_family
from planner.memory.arena import Buffer
from planner.network.forward import Forward
from planner.network.modules import Module, inner_norms
from planner.tables import card_of
from planner.tape import ops
from planner.tape.autograd import Gradients, Tensor
from planner.training_case import TrainingCase

FP32 = 4
LAST_NORM = "norm"
ATTENTION = "self_attn."


def normalises(case: TrainingCase, name: str) -> bool:
    """Whether a norm is Liger's: all around attention and feed-forward parts are, within attention some."""
    family = liger_family(case)
    if family is None or not case.fuses("rms_norm"):
        return False
    return name not in inner_norms(case.architecture) or f"{ATTENTION}{name}" in family.norms


def activates(case: TrainingCase) -> bool:
    """Whether the activation is Liger's."""
    family = liger_family(case)
    return family is not None and (family.always_activates or case.fuses("swiglu"))


def turns_in_place(case: TrainingCase) -> bool:
    """Whether queries and keys turn where they are."""
    family = liger_family(case)
    return family is not None and family.rotary and case.fuses("rope")


def normalised(forward: Forward, module: Module, x: Tensor) -> Tensor:
    """`LigerRMSNormFunction`: in place, the input's gradient is written over that of the output.

    The weight's is summed up in fp32 in a row for each multiprocessor of the GPU.
    """
    tape, weight, family = forward.tape, module.weight, liger_family(forward.case)
    assert family is not None
    split_heads = module.name in ("q_norm", "k_norm") and not forward.arch.qk_norm_inline
    copies = split_heads and x.numel != forward.tokens * weight.numel  # a single head lies evenly
    in_place = family.last_in_place if module.name == LAST_NORM else family.in_place
    rows = _even(forward, x, copies=copies)
    out = tape.tensor(x.numel, x.itemsize)
    if not (tape.recording and (x.needs_grad or weight.trainable)):
        return out
    deviations = tape.arena.new(x.numel // weight.numel * FP32, "activations")
    new, nbytes, trained = tape.arena.new, x.nbytes, weight.trainable
    card = card_of(forward.case.device)
    parts = 1 if card is None else card.multiprocessors

    def rule(gradient: Buffer) -> Gradients:
        if copies:
            gradient = new(nbytes, ops.ACTIVATION_GRADIENTS)
        partial = new(parts * weight.numel * FP32 if trained else 0, ops.ACTIVATION_GRADIENTS)
        if not in_place:
            gradient = new(nbytes, ops.ACTIVATION_GRADIENTS)
        if not trained:
            return [gradient]
        summed = new(weight.numel * FP32, ops.ACTIVATION_GRADIENTS)
        tape.sums_columns(parts, weight.numel)
        ours = new(weight.numel * weight.itemsize, ops.GRADIENTS) if weight.itemsize != FP32 else summed
        del partial
        return [gradient, ours]

    sources = [x, weight] if trained else [x]
    return tape.attach(out, rule, sources, saves=(rows, deviations))


def _even(forward: Forward, x: Tensor, *, copies: bool) -> Buffer:
    """What `contiguous` gives: parts of a wider buffer are copied too."""
    if not copies and x.buffer.nbytes <= x.nbytes:
        return x.buffer
    return forward.tape.arena.new(x.nbytes, "activations")


def turned(forward: Forward, tables: tuple[Buffer, ...], x: Tensor) -> Tensor:
    """`LigerRopeFunction` for queries or keys: they turn where they are, and so do their gradients.

    Keys that were repeated for their queries, and the operands of products, have gradients laid out by heads,
    which are copied.
    """
    tape, arch = forward.tape, forward.arch
    from_norm = arch.qk_norm and not arch.qk_norm_inline and normalises(forward.case, "q_norm")
    heads = x.numel // (forward.tokens * arch.head_dim)
    out = Tensor(_even(forward, x, copies=from_norm and heads > 1), x.numel, x.itemsize)
    if not (tape.recording and x.needs_grad):
        return out
    new, nbytes = tape.arena.new, x.nbytes
    repeated = forward.masks.full is not None and heads < arch.heads
    copies = forward.case.attention == "eager" or repeated

    def rule(gradient: Buffer) -> Gradients:
        return [new(nbytes, ops.ACTIVATION_GRADIENTS) if copies else gradient]

    return tape.attach(out, rule, [x], saves=tables)


def activated(forward: Forward, gate: Tensor, up: Tensor) -> Tensor:
    """`LigerSiLUMulFunction` and `LigerGELUMulFunction`: gradients are written over gate and up."""
    tape = forward.tape
    product = tape.tensor(gate.numel, gate.itemsize)
    if not (tape.recording and (gate.needs_grad or up.needs_grad)):
        return product
    overwritten = [gate.buffer, up.buffer]

    def rule(_gradient: Buffer) -> Gradients:
        return [overwritten.pop(0), overwritten.pop(0)]

    return tape.attach(product, rule, [gate, up], keeps=True)


def activated_halves(forward: Forward, both: Tensor) -> Tensor:
    """The same of one projection cut by `chunk`: halves are copied, and their gradients put together."""
    tape, half_bytes = forward.tape, both.nbytes // 2
    new = tape.arena.new
    overwritten = [new(half_bytes, "activations") for _ in range(2)]
    product = tape.tensor(both.numel // 2, both.itemsize)
    if not (tape.recording and both.needs_grad):
        return product
    nbytes = both.nbytes

    def rule(gradient: Buffer) -> Gradients:
        del gradient
        whole = new(nbytes, ops.ACTIVATION_GRADIENTS)
        overwritten.clear()
        return [whole]

    return tape.attach(product, rule, [both], keeps=True)
