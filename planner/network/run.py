"""Forward pass of a transformer over a `Tape`, written as transformers writes it.

Local names live as long as in the original code, so that what is alive at each moment is right.
"""

from __future__ import annotations

from planner.architecture.spec import Architecture, Norm
from planner.memory.arena import Buffer
from planner.network.attention import attention, attention_mask
from planner.network.feed_forward import feed_forward
from planner.network.forward import Body, WeightHooks
from planner.network.modules import Layer, Module, Network
from planner.tape import ops
from planner.tape.autograd import Gradients, Tape, Tensor
from planner.training_case import TrainingCase

EIGHT_BITS = 8


class ForwardPass:
    """Runs micro-batches of one training case.

    With checkpointing the embedding's output needs a gradient whatever is trained: transformers 5
    `modeling_utils.py: _activation_checkpointing_enable` calls `enable_input_require_grads`.
    """

    def __init__(self, case: TrainingCase, network: Network, tape: Tape, hooks: WeightHooks) -> None:
        self.case, self.network, self.tape, self.hooks = case, network, tape, hooks
        self.arch: Architecture = case.architecture
        self.tokens = case.tokens
        self.itemsize = network.embedding.weight.itemsize
        self.inputs_need_grad = case.gradient_checkpointing
        self.leaf: list[Buffer] = []  # the embedding's output and its gradient, where it is a leaf
        self.mask: Buffer | None = None

    def hidden_states(self) -> Tensor:
        """From token ids to the last layer's output."""
        x = self._embed()
        self.mask = attention_mask(self)
        rotary = None if self.arch.learned_positions else self._rotary_tables()
        for layer in self.network.layers:
            x = self._checkpointed(layer, x) if self.case.gradient_checkpointing else self.block(layer, x)
        del rotary
        return self.norm(self.network.final_norm, x)

    def call(self, module: Module, x: Tensor, body: Body) -> Tensor:
        """Run one leaf module with DeepSpeed's hooks around it."""
        hooks, tape = self.hooks, self.tape
        if not hooks.shards_weights:
            return body(x)
        x = ops.signal(tape, x, lambda: hooks.after_backward(module))
        hooks.before_forward(module)
        out = body(x)
        hooks.after_forward(module)
        return ops.signal(tape, out, lambda: hooks.before_backward(module))

    def linear(self, module: Module, x: Tensor) -> Tensor:
        """A linear layer and, where it has one, its adapter (peft `lora/layer.py: Linear.forward`)."""
        result = self._plain_linear(module, x)
        if module.lora_a is None or module.lora_b is None:
            return result
        lora = self.case.lora
        assert lora is not None
        narrow = ops.cast(self.tape, x, module.lora_a.weight.itemsize)
        dropped = ops.dropout(self.tape, narrow, lora.dropout)
        low = self._plain_linear(module.lora_a, dropped)
        update = ops.scale(self.tape, self._plain_linear(module.lora_b, low))
        del narrow, dropped, low
        return ops.add(self.tape, result, update)

    def _plain_linear(self, module: Module, x: Tensor) -> Tensor:
        rows = self._rows(x, module)
        if module.weight.quantized:
            eight = self.case.quantization is not None and self.case.quantization.bits == EIGHT_BITS
            return ops.quantized_linear(self.tape, x, module.weight, rows=rows, saves_input=eight)
        keeps = self.hooks.shards_weights

        def body(inner: Tensor) -> Tensor:
            return ops.linear(self.tape, inner, module.weight, rows=rows, bias=module.bias, keeps_input=keeps)

        return self.call(module, x, body)

    @staticmethod
    def _rows(x: Tensor, module: Module) -> int:
        return x.numel // module.weight.shape[1]

    def norm(self, module: Module, x: Tensor) -> Tensor:
        """RMSNorm or LayerNorm with its hooks."""
        return self.call(module, x, lambda inner: self._norm_body(module, inner))

    def _norm_body(self, module: Module, x: Tensor) -> Tensor:
        tape, style = self.tape, self.arch.norm
        trained = tuple(p for p in module.own() if p.trainable)
        if style is Norm.layer or (self.case.liger and style is Norm.rms):
            return ops.elementwise(tape, [x], saves=(x.buffer,), trained=trained)
        wide = ops.cast(tape, x, 4)
        squared = ops.elementwise(tape, [wide], saves=(wide.buffer,), temporaries=2)
        del squared
        normed = ops.elementwise(tape, [wide], saves=(wide.buffer,), temporaries=1)
        del wide
        if style is Norm.rms_fp32:
            saves = (normed.buffer,) if trained else ()
            scaled = ops.elementwise(tape, [normed], saves=saves, temporaries=len(trained), trained=trained)
            del normed
            return ops.cast(tape, scaled, x.itemsize)
        narrow = ops.cast(tape, normed, x.itemsize)
        del normed
        saves = (narrow.buffer,) if trained else ()
        return ops.elementwise(tape, [narrow], saves=saves, temporaries=len(trained), trained=trained)

    def block(self, layer: Layer, x: Tensor) -> Tensor:
        """One transformer block."""
        arch = self.arch
        residual = x
        x = self.norm(layer.norms["input_layernorm"], x)
        x = attention(self, layer, x)
        if arch.sandwich_norms:
            x = self.norm(layer.norms["post_attention_layernorm"], x)
        x = ops.dropout(self.tape, x, arch.hidden_dropout)
        x = ops.add(self.tape, residual, x)
        residual = x
        second = "pre_feedforward_layernorm" if arch.sandwich_norms else "post_attention_layernorm"
        x = self.norm(layer.norms[second], x)
        x = feed_forward(self, layer, x)
        if arch.sandwich_norms:
            x = self.norm(layer.norms["post_feedforward_layernorm"], x)
        x = ops.dropout(self.tape, x, arch.hidden_dropout)
        return ops.add(self.tape, residual, x)

    def _embed(self) -> Tensor:
        tape, network = self.tape, self.network
        weight = network.embedding.weight
        x = self.call(
            network.embedding, tape.tensor(0, 1), lambda _: ops.embedding(tape, weight, self.tokens)
        )
        if self.inputs_need_grad and not x.needs_grad:
            x = self._leaf(x)
        if self.arch.scaled_embedding:
            x = ops.scale(tape, x)
        if network.positions is not None:
            position = network.positions.weight
            y = self.call(
                network.positions,
                tape.tensor(0, 1),
                lambda _: ops.embedding(tape, position, self.case.seq_len),
            )
            x = ops.elementwise(tape, [x])
            if position.trainable:
                x = ops.add(tape, x, y)
        x = ops.dropout(tape, x, self.arch.hidden_dropout if self.arch.model_type == "gpt2" else 0.0)
        return x

    def _leaf(self, x: Tensor) -> Tensor:
        """A tensor that nothing trained leads to, made to need a gradient: both stay with the graph."""
        self.leaf.append(x.buffer)

        def keep(gradient: Buffer) -> Gradients:
            self.leaf.append(gradient)
            return []

        return self.tape.attach(x.view(), keep, [])

    def _rotary_tables(self) -> tuple[Buffer, Buffer]:
        nbytes = self.case.seq_len * self.arch.head_dim * self.itemsize
        new = self.tape.arena.new
        return new(nbytes, "activations"), new(nbytes, "activations")

    def _checkpointed(self, layer: Layer, x: Tensor) -> Tensor:
        """Keep the input only; on the way back, run the block again and then its backward pass."""
        tape = self.tape
        was_recording, tape.recording = tape.recording, False
        out = self.block(layer, x.detached())
        tape.recording = was_recording
        wants_grad = x.needs_grad
        trained = any(p.trainable for m in layer.modules() for p in m.all())
        if not (was_recording and (wants_grad or trained)):
            return out
        kept = x.detached()

        def rule(gradient: Buffer) -> Gradients:
            return [self._recompute(layer, kept, gradient, wants_grad=wants_grad)]

        return tape.attach(out, rule, [x])

    def _recompute(self, layer: Layer, x: Tensor, gradient: Buffer, *, wants_grad: bool) -> Buffer | None:
        inner = Tape(self.tape.arena, self.tape.sink)
        outer, self.tape = self.tape, inner
        result: list[Buffer] = []
        start = x.view()
        if wants_grad:

            def keep(arrived: Buffer) -> Gradients:
                result.append(arrived)
                return []

            inner.attach(start, keep, [])
        out = self.block(layer, start)
        del start
        loss = out.detached()
        loss.node = out.node
        del out
        loss.buffer = gradient  # the recomputed output itself is not needed
        inner.backward(loss, gradient)
        self.tape = outer
        return result[0] if result else None

