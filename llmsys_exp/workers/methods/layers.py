"""Where the layers of a model are."""

from __future__ import annotations

from typing import Any

from llmsys_exp.errors import UserError


def decoder_layers(model: Any) -> Any:
    """Return the list of a model's decoder layers, first layer first."""
    from torch import nn

    wanted = model.config.get_text_config().num_hidden_layers
    found = [one for one in model.modules() if isinstance(one, nn.ModuleList) and len(one) == wanted]
    if not found:
        raise UserError(
            f"No list of {wanted} layers was found in {type(model).__name__}",
            where="method.kind=freeze",
            do="Use method=lora or method=full for this model, or name modules in method.freeze.modules",
        )
    return found[0]
