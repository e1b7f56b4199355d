"""The planner's case of a perceptron (`model.kind=mlp`), and the settings that mean nothing to one."""

from __future__ import annotations

from typing import Any

from llmsys_exp.config.schema import Config, Loss, MethodKind, ModelKind, Step
from llmsys_exp.errors import UserError
from llmsys_exp.workers.data.images import STANDIN

SETTING_OF_LAYERS = "model.layers"
IMAGES = (
    "Test images come with the others: data=fashion_mnist_standin, or data=fashion_mnist data.train=FOLDER"
)


def is_mlp(config: Config) -> bool:
    """Whether the model is a perceptron."""
    return config.model.kind is ModelKind.mlp


def mlp_shape(config: Config) -> dict[str, Any]:
    """Return the part of the case that says what is trained."""
    return {"kind": "mlp", "layers": list(config.model.layers), "method": "full"}


def mlp_problems(config: Config) -> list[UserError]:
    """Name what a perceptron does not have, or what a language model does not have."""
    if not is_mlp(config):
        return _not_mlp(config)
    problems = [] if config.method.kind is MethodKind.full else [_method(config.method.kind)]
    problems += [
        UserError(
            f"{key}={value} means nothing to model.kind=mlp",
            do=IMAGES if key.startswith("data.heldout") else f"Leave {key} out",
        )
        for key, value in _foreign(config).items()
        if value
    ]
    if len(config.model.layers) < 2:
        problems.append(
            UserError(
                f"model.layers is {config.model.layers}; it must hold at least two widths",
                where=SETTING_OF_LAYERS,
                do="Inputs first and classes last, such as model.layers=[784,300,10]",
            )
        )
    return problems


def check_mlp_steps(config: Config, steps: list[Step]) -> None:
    """Refuse steps that need a language model.

    Raises:
        UserError: naming the step.
    """
    others = [step.name for step in steps if step is not Step.train]
    if is_mlp(config) and others:
        raise UserError(
            f"The step {others[0]} needs a language model, and model.kind=mlp is a perceptron for images",
            where="steps",
            do="Set steps=[train]: it writes the trained weights, and its accuracy on the test images",
        )


def _not_mlp(config: Config) -> list[UserError]:
    if config.model.layers:
        return [UserError("model.layers is set, and model.kind is causal_lm", do="Set model.kind=mlp")]
    if config.data.train == STANDIN:
        return [
            UserError(
                f"data.train={STANDIN} makes images, and model.kind is causal_lm",
                do="Set model=mlp_fashion_mnist method=full, or choose other data",
            )
        ]
    return []


def _method(kind: MethodKind) -> UserError:
    return UserError(
        f"method.kind={kind.value} needs a language model, and model.kind=mlp is a perceptron",
        do="Set method=full: it trains every weight",
    )


def _foreign(config: Config) -> dict[str, Any]:
    data, training = config.data, config.training
    return {
        "data.packing": data.packing,
        "data.group_by_length": data.group_by_length,
        "data.preview": data.preview,
        "data.heldout": data.heldout,
        "data.heldout_split": data.heldout_split,
        "data.dataset_info": data.dataset_info,
        "training.liger": training.liger,
        "training.loss": "" if training.loss is Loss.stock else training.loss.value,
        "training.gradient_checkpointing": training.gradient_checkpointing is True,
    }
