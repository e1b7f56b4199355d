"""Forward pass of a transformer over a `Tape`, written as transformers writes it.

Local names live as long as in the original code, so that what is alive at each moment is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from planner.architecture.spec import Architecture, Mlp, Norm
from planner.memory.arena import Buffer
from planner.network.modules import Layer, Module, Network
from planner.tape import ops
from planner.tape.autograd import Gradients, Tape, Tensor
from planner.training_case import TrainingCase

Body = Callable[[Tensor], Tensor]


class WeightHooks(Protocol):
    """DeepSpeed's hooks around each module with parameters (stage 3)."""

    shards_weights: bool

    def before_forward(self, module: Module) -> None: ...
    def after_forward(self, module: Module) -> None: ...
    def before_backward(self, module: Module) -> None: ...
    def after_backward(self, module: Module) -> None: ...


class ForwardPass:
    """Runs micro-batches of one training case.

    Args:
        inputs_need_grad: with adapters and checkpointing, the embedding's output is made to need a
            gradient (`enable_input_require_grads`).
    """

    def __init__(self, case: TrainingCase, network: Network, tape: Tape, hooks: WeightHooks) -> None:
        self.case, self.network, self.tape, self.hooks = case, network, tape, hooks
        self.arch: Architecture = case.architecture
        self.tokens = case.tokens
        self.itemsize = network.embedding.weight.itemsize
        self.inputs_need_grad = case.lora is not None and case.gradient_checkpointing
        self.mask: Buffer | None = None

    def hidden_states(self) -> Tensor:
        """From token ids to the last layer's output."""
        x = self._embed()
        self.mask = self._attention_mask()
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
            return ops.quantized_linear(self.tape, x, module.weight, rows=rows)
        keeps = self.hooks.shards_weights

        def body(inner: Tensor) -> Tensor:
            return ops.linear(
                self.tape, inner, module.weight, rows=rows, bias=module.bias, keeps_input=keeps
            )

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
        x = self._attention(layer, x)
        if arch.sandwich_norms:
            x = self.norm(layer.norms["post_attention_layernorm"], x)
        x = ops.dropout(self.tape, x, arch.hidden_dropout)
        x = ops.add(self.tape, residual, x)
        residual = x
        second = "pre_feedforward_layernorm" if arch.sandwich_norms else "post_attention_layernorm"
        x = self.norm(layer.norms[second], x)
        x = self._mlp(layer, x)
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
        if self.inputs_need_grad and not x.needs_grad:
            x = tape.attach(x.view(), _nothing, [])
        return x

    def _rotary_tables(self) -> tuple[Buffer, Buffer]:
        nbytes = self.case.seq_len * self.arch.head_dim * self.itemsize
        new = self.tape.arena.new
        return new(nbytes, "activations"), new(nbytes, "activations")

    def _attention_mask(self) -> Buffer | None:
        """A 4-D mask: always with eager attention, with sdpa only for padded batches."""
        case = self.case
        if case.attention == "flash_attention_2" or (case.attention == "sdpa" and not case.padded):
            return None
        rows = case.micro_batch if case.padded else 1
        itemsize = self.itemsize if case.attention == "eager" else 1
        return self.tape.arena.new(rows * case.seq_len**2 * itemsize, "attention mask")

    def _attention(self, layer: Layer, x: Tensor) -> Tensor:
        q, k, v = self._queries_keys_values(layer, x)
        del x
        if self.arch.qk_norm:
            q, k = self.norm(layer.norms["q_norm"], q), self.norm(layer.norms["k_norm"], k)
        if not self.arch.learned_positions:
            q, k = self._rotate(q), self._rotate(k)
        out = self._eager(q, k, v) if self.case.attention == "eager" else self._fused(q, k, v)
        del q, k, v
        name = next(n for n in ("o_proj", "out_proj", "attn.c_proj") if n in layer.linears)
        return self.linear(layer.linears[name], out)

    def _queries_keys_values(self, layer: Layer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        arch, linears = self.arch, layer.linears
        if not arch.fused_qkv:
            q, k, v = (self.linear(linears[n], x) for n in ("q_proj", "k_proj", "v_proj"))
            return q, k, v
        fused = self.linear(linears[arch.fused_qkv], x)
        widths = (arch.q_width, arch.kv_width, arch.kv_width)
        return self._split(fused, widths)

    def _split(self, fused: Tensor, widths: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Views into one buffer; their gradients are put together into one of the full width."""
        tape = self.tape
        parts = [Tensor(fused.buffer, self.tokens * w, fused.itemsize) for w in widths]
        if tape.recording and fused.needs_grad:
            total, first = fused.nbytes, True
            for part in parts:

                def rule(_gradient: Buffer) -> Gradients:
                    return [tape.arena.new(total, ops.ACTIVATION_GRADIENTS)]

                tape.attach(part, rule, [fused])
                first = False
            assert not first
        return parts[0], parts[1], parts[2]

    def _rotate(self, x: Tensor) -> Tensor:
        """q * cos + rotate_half(q) * sin: cos and sin are saved, the input is not."""
        tape = self.tape
        straight = ops.scale(tape, x)
        half = ops.elementwise(tape, [x])
        turned = ops.scale(tape, half)
        del half
        return ops.add(tape, straight, turned)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.mask is not None and self.arch.kv_heads != self.arch.heads:
            k, v = self._repeat(k), self._repeat(v)
        return ops.scaled_dot_product(self.tape, q, k, v, heads=self.arch.heads, tokens=self.tokens)

    def _repeat(self, x: Tensor) -> Tensor:
        if self.arch.kv_heads == self.arch.heads:
            return x
        out = self.tape.tensor(self.tokens * self.arch.q_width, x.itemsize)
        if not (self.tape.recording and x.needs_grad):
            return out
        nbytes, new = x.nbytes, self.tape.arena.new
        return self.tape.attach(out, lambda _: [new(nbytes, ops.ACTIVATION_GRADIENTS)], [x])

    def _eager(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        tape, arch = self.tape, self.arch
        scores = arch.heads * self.tokens * self.case.seq_len
        k, v = self._repeat(k), self._repeat(v)
        weights = ops.scale(tape, ops.matmul(tape, q, k, numel=scores))
        del q, k
        if arch.attention_softcap:
            weights = ops.scale(tape, ops.saves_output(tape, ops.scale(tape, weights)))
        if self.mask is not None:
            weights = ops.elementwise(tape, [weights])
        if arch.model_type == "gpt2":
            weights = ops.saves_output(tape, weights)
        else:
            weights = ops.cast(tape, ops.saves_output(tape, weights, itemsize=4), self.itemsize)
        weights = ops.dropout(tape, weights, arch.attention_dropout)
        out = ops.matmul(tape, weights, v, numel=self.tokens * arch.q_width)
        del weights, v
        return ops.elementwise(tape, [out])  # transpose(1, 2).contiguous()

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        tape, linears, style = self.tape, layer.linears, self.arch.mlp
        if style is Mlp.relu:
            return self.linear(linears["fc2"], ops.saves_output(tape, self.linear(linears["fc1"], x)))
        if style is Mlp.gelu_new:
            return self.linear(linears["mlp.c_proj"], self._gelu_new(self.linear(linears["c_fc"], x)))
        if style is Mlp.fused_gated:
            both = self.linear(linears["gate_up_proj"], x)
            gate, up, _ = self._split(both, (self.arch.ffn, self.arch.ffn, 0))
            del both
        elif style is Mlp.moe:
            return self._experts(layer, x)
        else:
            gate, up = None, None
            if self.case.liger:
                return self._liger_mlp(layer, x)
            act = ops.activation(tape, self.linear(linears["gate_proj"], x))
            up = self.linear(linears["up_proj"], x)
            return self.linear(linears["down_proj"], ops.multiply(tape, act, up))
        act = ops.activation(tape, gate)
        del gate
        return self.linear(linears["down_proj"], ops.multiply(tape, up, act))

    def _liger_mlp(self, layer: Layer, x: Tensor) -> Tensor:
        """LigerSiLUMulFunction saves gate and up, and writes their gradients over them."""
        gate = self.linear(layer.linears["gate_proj"], x)
        up = self.linear(layer.linears["up_proj"], x)
        product = ops.elementwise(self.tape, [gate, up])
        if product.node is not None:
            kept = [gate.buffer, up.buffer]
            product.node.rule = lambda _gradient: [kept.pop(0), kept.pop(0)]
        del gate, up
        return self.linear(layer.linears["down_proj"], product)

    def _gelu_new(self, x: Tensor) -> Tensor:
        """0.5 * x * (1 + tanh(c * (x + 0.044715 * x**3))), operator by operator."""
        tape = self.tape
        half = ops.scale(tape, x)
        cubed = ops.scale(tape, ops.elementwise(tape, [x], saves=(x.buffer,), temporaries=2))
        inner = ops.add(tape, x, cubed)
        del cubed
        tanh = ops.saves_output(tape, ops.scale(tape, inner))
        del inner
        return ops.multiply(tape, half, ops.scale(tape, tanh))

    def _experts(self, layer: Layer, x: Tensor) -> Tensor:
        """Routed experts: each token passes through `experts_per_token` gated networks."""
        tape, arch = self.tape, self.arch
        router = self.linear(layer.linears["gate"], x)
        probabilities = ops.saves_output(tape, router, itemsize=4)
        del router
        rows = self.tokens * arch.experts_per_token
        up_weight = layer.linears["experts.gate_up_proj"].weight
        down_weight = layer.linears["experts.down_proj"].weight
        both = self._expert_product(x, up_weight.numel, up_weight.trainable, rows * 2 * arch.ffn)
        act = ops.activation(tape, Tensor(both.buffer, rows * arch.ffn, both.itemsize, both.node))
        up = Tensor(both.buffer, rows * arch.ffn, both.itemsize, both.node)
        del both
        product = ops.multiply(tape, act, up)
        del act, up
        out = self._expert_product(product, down_weight.numel, down_weight.trainable, rows * arch.hidden)
        del product, probabilities
        scaled = ops.elementwise(tape, [out], saves=(out.buffer,))
        del out
        result = tape.tensor(x.numel, x.itemsize)
        if not (tape.recording and scaled.needs_grad):
            return result
        nbytes = scaled.nbytes
        return tape.attach(result, lambda _: [tape.arena.new(nbytes, ops.ACTIVATION_GRADIENTS)], [scaled])

    def _expert_product(self, x: Tensor, _weights: int, _trainable: bool, numel: int) -> Tensor:
        out = self.tape.tensor(numel, x.itemsize)
        if not (self.tape.recording and x.needs_grad):
            return out
        kept, nbytes, new = x.buffer, x.nbytes, self.tape.arena.new

        def rule(_gradient: Buffer) -> Gradients:
            assert kept.nbytes
            return [new(nbytes, ops.ACTIVATION_GRADIENTS)]

        return self.tape.attach(out, rule, [x])

    def _checkpointed(self, layer: Layer, x: Tensor) -> Tensor:
        """Keep the input only; on the way back, run the block again and then its backward pass."""
        tape = self.tape
        was_recording, tape.recording = tape.recording, False
        out = self.block(layer, x.detached())
        tape.recording = was_recording
        if not was_recording:
            return out
        kept = Tensor(x.buffer, x.numel, x.itemsize)
        wants_grad = x.needs_grad

        def rule(gradient: Buffer) -> Gradients:
            return [self._recompute(layer, kept, gradient, wants_grad=wants_grad)]

        trained = any(p.trainable for m in layer.modules() for p in m.all())
        return tape.attach(out, rule, [x]) if wants_grad or trained else out

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


def _nothing(_gradient: Buffer) -> Gradients:
    return []
