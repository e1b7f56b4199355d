"""Logits and loss: where large vocabularies spend their memory.

Stock: transformers `loss/loss_utils.py: ForCausalLMLoss`. Fused: liger-kernel 0.8.5
`ops/fused_linear_cross_entropy.py`.
"""

from __future__ import annotations

from planner.liger import PLAIN_LOSS, fuses_loss, liger_family
from planner.memory.arena import Buffer
from planner.network.litgpt import litgpt_loss
from planner.network.run import ForwardPass
from planner.network.scores import CHAT, TRL, VALUES, scored
from planner.tape import ops, products
from planner.tape.autograd import Gradients, Parameter, Tensor
from planner.units import ceil_div

REAL_TOKENS = 1 << 60
INDEX_BYTES = 8  # int64
LITGPT = "litgpt_chunked"


def stock_loss(forward: ForwardPass, hidden: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits for every token, an fp32 copy, log-softmax, negative log-likelihood.

    Returns:
        The loss and the tensors that the caller's `outputs` object keeps alive.
    """
    tape = forward.tape
    logits = _logits(forward, hidden)
    wide = ops.cast(tape, logits, 4)
    kept = [logits] if forward.case.outputs_kept else []
    family = liger_family(forward.case)
    if family is not None and family.loss == PLAIN_LOSS:
        del logits
        return _liger_entropy(forward, wide), kept
    log_probabilities = ops.saves_output(tape, wide)
    del wide, logits
    nbytes = log_probabilities.nbytes
    loss = tape.tensor(1, 4)
    tape.attach(loss, lambda _: [tape.arena.new(nbytes, ops.ACTIVATION_GRADIENTS)], [log_probabilities])
    return loss, kept


def _liger_entropy(forward: ForwardPass, logits: Tensor) -> Tensor:
    """`LigerCrossEntropyFunction`: the gradient is written over the logits, in the forward pass."""
    tape, tokens = forward.tape, forward.tokens
    losses = tape.arena.new(tokens * logits.itemsize, "activations")
    for nbytes in (1, INDEX_BYTES, INDEX_BYTES):  # which targets count; are they tokens?
        tape.arena.new(tokens * nbytes, "activations")
    loss, held = tape.tensor(1, logits.itemsize), [logits.buffer]
    del losses
    return tape.attach(loss, lambda _: [held.pop()], [logits], keeps=True)


def chunked_loss(forward: ForwardPass, hidden: Tensor) -> tuple[Tensor, list[Tensor]]:
    """DeepSpeed 0.19.8 `runtime/chunked_cross_entropy.py`: no fp32 logits.

    On CUDA its kernel saves the logits and one number a token, and backward writes a gradient of the
    logits' own type.
    """
    tape = forward.tape
    logits = _logits(forward, hidden)
    kept = [logits] if forward.case.outputs_kept else []
    statistics = tape.arena.new(forward.tokens * 4, "activations")
    nbytes, loss = logits.nbytes, tape.tensor(1, 4)
    saves = (logits.buffer, statistics)
    new = tape.arena.new
    tape.attach(loss, lambda _: [new(nbytes, ops.ACTIVATION_GRADIENTS)], [logits], saves=saves)
    return loss, kept


def loss_of(forward: ForwardPass, hidden: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The loss that the case asks for, and what the caller's `outputs` object keeps alive."""
    case = forward.case
    if fuses_loss(case):
        return liger_loss(forward, hidden)
    if case.loss in (TRL, CHAT, VALUES):
        return scored(forward, hidden)
    if case.loss == LITGPT:
        return litgpt_loss(forward, hidden), []
    return chunked_loss(forward, hidden) if case.loss == "chunked" else stock_loss(forward, hidden)


def _product(forward: ForwardPass, hidden: Tensor) -> Tensor:
    module, keeps = forward.network.output, forward.hooks.keeps_inputs
    return forward.call(
        module,
        hidden,
        lambda x: products.linear(
            forward.tape, x, module.weight, rows=forward.tokens, bias=module.bias, keeps_input=keeps
        ),
    )


def _logits(forward: ForwardPass, hidden: Tensor) -> Tensor:
    module, tape = forward.network.output, forward.tape
    logits = forward.plain_linear(module, hidden) if module.weight.quantized else _product(forward, hidden)
    if forward.arch.scaled_logits:
        logits = ops.scale(tape, logits)
    if forward.arch.logit_softcap:  # one name throughout: each step lets the one before it go
        logits = ops.scale(tape, logits)
        logits = ops.saves_output(tape, logits)
        logits = ops.scale(tape, logits)
    return logits


def liger_loss(forward: ForwardPass, hidden: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits a chunk at a time; gradients of input and weight are made in the forward pass and kept."""
    tape, weight = forward.tape, forward.network.output.weight
    tokens, vocab, width = forward.tokens, *weight.shape
    chunk_bytes = _chunk_bytes(tokens, vocab, width, hidden.itemsize)
    forward.hooks.reach(weight)
    grad_in = tape.arena.new(tokens * width * hidden.itemsize, ops.ACTIVATION_GRADIENTS)
    grad_weight = tape.arena.new(weight.numel * weight.itemsize, ops.GRADIENTS) if weight.trainable else None
    logits = tape.arena.new(chunk_bytes, "logits")
    del logits  # torch.addmm adds each chunk's part to the weight's gradient in place
    loss = tape.tensor(1, 4)
    trained: list[Parameter] = [weight] if weight.trainable else []
    held: list[Buffer | None] = [grad_in, *([grad_weight] if trained else [])]
    del grad_in, grad_weight
    forward.hooks.leave()

    def rule(_gradient: Buffer) -> Gradients:
        forward.hooks.reach(weight)
        result: Gradients = list(held)
        held.clear()
        return result

    return tape.attach(loss, rule, [hidden, *trained]), []


def _chunk_bytes(tokens: int, vocab: int, width: int, itemsize: int) -> int:
    """Logits of one chunk; for lengths that stand for a polynomial (`planner/grid`), an upper end."""
    if tokens > REAL_TOKENS:
        return 2 * tokens * width * itemsize
    rows = min(_next_power_of_2(ceil_div(tokens, ceil_div(vocab, width))), tokens)
    return rows * vocab * itemsize


def _next_power_of_2(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()
