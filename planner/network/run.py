"""Forward pass of a transformer over a `Tape`, written as transformers writes it.

Local names live as long as in the original code, so that what is alive at each moment is right.
"""

from __future__ import annotations

from functools import partial

from planner.architecture.spec import Architecture
from planner.memory.arena import Buffer
from planner.network.adapters import adapted
from planner.network.attention import Masks, attention_masks
from planner.network.block import block
from planner.network.checkpoint import checkpointed
from planner.network.forward import Body, KeptInput, WeightHooks, hooked, within
from planner.network.gptq import gptq_linear
from planner.network.modules import Layer, Module, Network
from planner.network.norms import normalise
from planner.network.rotary import rotary_tables
from planner.tape import ops, products
from planner.tape.autograd import Gradients, Tape, Tensor
from planner.training_case import Quantization, TrainingCase
from planner.units import DTYPE_BYTES

GPTQ = "gptq"


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
        self.checkpoints = case.gradient_checkpointing
        self.graph: list[Buffer] = []  # lives until the last name for the loss goes
        self.adapters = True
        self.earlier_logits: list[Buffer] = []
        """Logits of the last micro-batch, where the loop has a name for them (LitGPT)."""
        self.kept_inputs: list[KeptInput] = []
        self.masks = Masks()
        self.rotary: tuple[Buffer, ...] = ()

    def hidden_states(self) -> Tensor:
        """From token ids to the last layer's output."""
        for _ in range(self._outer_modules + 1):
            self.hooks.pass_by()
        x = embedded = self._embed()
        self.masks = attention_masks(self)
        self.rotary = rotary_tables(self)
        for layer in self.network.layers:
            x = self._hooked(layer, x)
        if not self.checkpoints:  # a checkpoint keeps the arguments of its block
            self.masks, self.rotary = Masks(), ()
        out = self.norm(self.network.final_norm, x)
        del embedded  # "inputs_embeds" names it to the end
        return ops.signal(self.tape, out, self.hooks.pass_back)

    @property
    def _outer_modules(self) -> int:
        """Modules around the one that holds the blocks: that of the language model, and peft's two."""
        return 1 if self.case.lora is None else 3

    def ended(self, loss: Tensor) -> Tensor:
        """The loss as the outermost module gives it, with DeepSpeed's hooks on its way back."""
        for _ in range(self._outer_modules):
            loss = ops.signal(self.tape, loss, self.hooks.pass_back)
        return loss

    def _hooked(self, layer: Layer, x: Tensor) -> Tensor:
        """FSDP's hooks lie around the checkpoint: what is made again finds its weights there."""
        around = self.hooks.blocks
        return (
            self._run(layer, x)
            if around is None
            else around.around(self.tape, layer, x, partial(self._run, layer))
        )

    def _run(self, layer: Layer, x: Tensor) -> Tensor:
        return self.within(x, partial(self._inner, layer))

    def _inner(self, layer: Layer, x: Tensor) -> Tensor:
        return checkpointed(self, layer, x, self._block) if self.checkpoints else self._block(layer, x)

    def _block(self, layer: Layer, x: Tensor) -> Tensor:
        return block(self, layer, x)

    def call(self, module: Module, x: Tensor, body: Body) -> Tensor:
        """Run one leaf module with DeepSpeed's hooks around it."""
        return hooked(self.tape, self.hooks, module, x, body)

    def passes(self) -> None:
        """A module without weights runs of which no gradient is taken."""
        self.hooks.pass_by()

    def within(self, x: Tensor, body: Body) -> Tensor:
        """Run the code of a module without weights of its own with DeepSpeed's hooks around it."""
        return within(self.tape, self.hooks, x, body)

    def linear(self, module: Module, x: Tensor) -> Tensor:
        """A linear layer and, where it has one, its adapter, which is a module around both."""
        if module.lora_a is None:
            return self.plain_linear(module, x)
        return self.within(x, partial(self._with_adapter, module))

    def _with_adapter(self, module: Module, x: Tensor) -> Tensor:
        result = self.plain_linear(module, x)
        return adapted(self, module, x, result) if self.adapters else result

    def plain_linear(self, module: Module, x: Tensor) -> Tensor:
        """A linear layer without its adapter."""
        rows = self._rows(x, module)
        if module.weight.quantized:
            return self._quantized(module, x, rows)
        keeps = self.hooks.keeps_inputs

        def body(inner: Tensor) -> Tensor:
            whole = self.hooks.saved_weight(module.weight)
            return products.linear(
                self.tape, inner, module.weight, rows=rows, bias=module.bias, keeps_input=keeps, whole=whole
            )

        return self.call(module, x, body)

    def _quantized(self, module: Module, x: Tensor, rows: int) -> Tensor:
        base = self.case.quantization
        assert base is not None
        if base.kind == GPTQ:
            return gptq_linear(self.tape, x, module.weight, rows=rows, casts=self.case.dtype != "fp16")
        return self.call(module, x, lambda inner: self._unpacked(module, inner, rows, base))

    def _unpacked(self, module: Module, x: Tensor, rows: int, base: Quantization) -> Tensor:
        """A product with a weight of bitsandbytes."""
        if base.keeps_inputs and (x.needs_grad or self.checkpoints) and not self.tape.recomputes:
            # `ctx.tensors` of bitsandbytes (every MatMul8bitLt, MatMul4Bit before 0.43.2) is an attribute:
            # no hook of a checkpoint sees it, and it lives as long as the graph does.
            self.graph.append(x.buffer)
        whole = self.hooks.packed_weight(module.weight)
        if whole is not None and (x.needs_grad or self.checkpoints) and not self.tape.recomputes:
            self.graph.append(whole)  # `ctx.tensors` of MatMul4Bit, as above
        wide = DTYPE_BYTES[base.unpacked_dtype or self.case.dtype]
        differs = base.unpacked_dtype not in (None, self.case.dtype)
        return products.quantized_linear(
            self.tape, x, module.weight, rows=rows, unpacked=wide if differs else 0
        )

    @staticmethod
    def _rows(x: Tensor, module: Module) -> int:
        return x.numel // module.weight.shape[1]

    def norm(self, module: Module, x: Tensor) -> Tensor:
        """RMSNorm or LayerNorm with its hooks."""
        return self.call(module, x, lambda inner: normalise(self, module, inner))

    def _embed(self) -> Tensor:
        tape, network = self.tape, self.network
        weight = network.embedding.weight
        x = self.call(
            network.embedding, tape.tensor(0, 1), lambda _: ops.embedding(tape, weight, self.tokens)
        )
        if self.arch.scaled_embedding:  # within the embedding's module
            x = ops.scale(tape, x)
        if self.checkpoints and not x.needs_grad:
            x = self._leaf(x)
        if self.arch.scaled_inputs:
            x = ops.scale(tape, x)
        if network.positions is not None:
            x = self._with_positions(x, network.positions)
        if network.embedding_norm is not None:
            x = self.norm(network.embedding_norm, x)
        return ops.dropout(tape, x, self.arch.embedding_dropout)

    def _with_positions(self, x: Tensor, positions: Module) -> Tensor:
        """Learned positions, one row for the whole batch, added to the embedding."""
        tape, weight = self.tape, positions.weight
        rows = self.call(
            positions, tape.tensor(0, 1), lambda _: ops.embedding(tape, weight, self.case.seq_len)
        )
        x = ops.elementwise(tape, [x])
        return ops.add(tape, x, rows) if weight.trainable else x

    def _leaf(self, x: Tensor) -> Tensor:
        """A tensor that nothing trained leads to, made to need a gradient: both stay with the graph."""
        self.graph.append(x.buffer)

        def keep(gradient: Buffer) -> Gradients:
            self.graph.append(gradient)
            return []

        leaf = self.tape.attach(x.view(), keep, [])
        if not self.hooks.shards_weights:
            return leaf
        # transformers' hook comes before DeepSpeed's, which then sees an output that needs a gradient.
        return ops.signal(self.tape, leaf, lambda: self.hooks.before_backward(self.network.embedding))
