"""GPTQModel's linear layers on shapes: packed words, unpacked anew for each product.

Source: GPTQModel 7.5.0 `nn_modules/qlinear/__init__.py: _register_gptq_buffers`, `torch.py: TorchLinear`,
`tritonv2.py`. Of the kernels that can be trained on a CUDA device its choice is Triton's for 2, 4 and 8 bits,
which hands over to the one in torch while a model trains. Unpacking is compiled to one kernel that makes its
result alone; scales stay fp16 whatever the type of the model, and so is the result, which is then cast.
"""

from __future__ import annotations

import torch

from planner.network.gptq import WORD_BITS
from planner.simulate.recorder import GPU
from planner.training_case import Quantization
from planner.units import ceil_div

UNPACKED = torch.float16


class GptqLinear(torch.nn.Linear):
    """One matrix in packed words.

    Args:
        layer: the layer whose weight is packed; the Conv1D of GPT-2 is one that has it transposed.
        how: the packing.
    """

    def __init__(self, layer: torch.nn.Module, how: Quantization) -> None:
        torch.nn.Module.__init__(self)  # that of Linear would make a weight
        shape = layer.weight.shape
        outputs, inputs = shape if isinstance(layer, torch.nn.Linear) else shape[::-1]
        self.in_features, self.out_features = int(inputs), int(outputs)
        groups = 1 if how.group_size == -1 else ceil_div(self.in_features, how.group_size)
        for name, sizes, dtype in (
            ("qweight", (ceil_div(self.in_features * how.bits, WORD_BITS), outputs), torch.int32),
            ("qzeros", (groups, ceil_div(self.out_features * how.bits, WORD_BITS)), torch.int32),
            ("scales", (groups, outputs), UNPACKED),
            ("g_idx", (inputs,), torch.int32),
        ):
            self.register_buffer(name, torch.empty(sizes, dtype=dtype, device=GPU))
        bias = None if layer.bias is None else torch.empty(outputs, dtype=UNPACKED, device=GPU)
        self.register_buffer("bias", bias)

    @property
    def weight(self) -> torch.Tensor:
        """What peft asks for shape and type; it holds no memory worth counting and is no parameter."""
        return self.scales[:1, :1].expand(self.out_features, self.in_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by the unpacked matrix, which autograd keeps."""
        rows = x.reshape(-1, x.shape[-1])
        whole = torch.empty((self.in_features, self.out_features), dtype=UNPACKED, device=GPU)
        whole = whole.to(x.dtype)
        out = torch.matmul(rows, whole).reshape(*x.shape[:-1], self.out_features)
        if self.bias is not None:
            out.add_(self.bias.to(out.dtype))
        return out
