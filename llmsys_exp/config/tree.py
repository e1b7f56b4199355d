"""The schema as a flat table of dotted settings, with what each one accepts in words."""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from llmsys_exp.config.schema import AUTO, Config
from llmsys_exp.errors import closest

# What the neighbours call the same thing.
ALIASES = {
    "lr": "training.learning_rate",
    "learning_rate": "training.learning_rate",
    "batch_size": "training.micro_batch",
    "micro_batch_size": "training.micro_batch",
    "per_device_train_batch_size": "training.micro_batch",
    "gradient_accumulation_steps": "training.grad_accum",
    "cutoff_len": "data.max_length",
    "max_seq_length": "data.max_length",
    "num_train_epochs": "training.epochs",
    "num_gpus": "hardware.gpus_per_node",
    "lora_r": "method.lora.r",
    "lora_rank": "method.lora.r",
    "lora_alpha": "method.lora.alpha",
    "zero_stage": "zero.stage",
}

OTHER_WORDS: dict[str, tuple[str, ...]] = {"inference.batch_size": ("all",)}
"""Words that a setting takes beside `auto`."""

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    type(None): "null",
}


@dataclass(frozen=True)
class SettingsTree:
    """Every setting (`leaves`: dotted name to type) and every section that holds some."""

    leaves: dict[str, Any]
    sections: frozenset[str]

    def knows(self, key: str) -> bool:
        """Return whether `key` is a setting, a section, or an entry of a free dictionary."""
        return key in self.leaves or key in self.sections or self._inside_free_dictionary(key)

    def children(self, section: str) -> list[str]:
        """Return the names directly below a section; the top level is an empty text."""
        prefix = f"{section}." if section else ""
        names = {key[len(prefix) :] for key in (*self.leaves, *self.sections) if key.startswith(prefix)}
        return sorted(name for name in names if name and "." not in name)

    def nearest(self, key: str) -> str:
        """Return the setting somebody who wrote `key` most likely meant, or an empty text."""
        section, _, leaf = key.rpartition(".")
        elsewhere = self._elsewhere(leaf)
        if section in self.sections or not (section or elsewhere):
            sibling = closest(leaf, self.children(section))
            if sibling:
                return f"{section}.{sibling}" if section else sibling
        return elsewhere or closest(key, self.leaves)

    def _elsewhere(self, leaf: str) -> str:
        """Return the setting of that last name in another section, or what other tools call by that name."""
        same_leaf = [name for name in self.leaves if name.rpartition(".")[2] == leaf]
        return ALIASES.get(leaf, same_leaf[0] if same_leaf else "")

    def expects(self, key: str) -> str:
        """Say in words what a setting accepts."""
        return " or ".join([describe(self.leaves[key]), *OTHER_WORDS.get(key, ())])

    def words(self, key: str) -> tuple[str, ...]:
        """Return the texts that a setting accepts which takes `auto`."""
        return (AUTO, *OTHER_WORDS.get(key, ()))

    def takes_auto(self, key: str) -> bool:
        """Return whether the only texts a setting accepts are `auto` and what `words` says."""
        hint = self.leaves.get(key)
        return get_origin(hint) is Union and str in get_args(hint) and type(None) not in get_args(hint)

    def _inside_free_dictionary(self, key: str) -> bool:
        while "." in key:
            key = key.rpartition(".")[0]
            if get_origin(self.leaves.get(key)) is dict:
                return True
        return False


@lru_cache(maxsize=1)
def settings_tree() -> SettingsTree:
    """Read the tree from the dataclasses of the schema."""
    leaves: dict[str, Any] = {}
    sections: set[str] = set()
    _collect(Config, "", leaves, sections)
    return SettingsTree(leaves, frozenset(sections))


def value_at(config: Any, key: str) -> Any:
    """Return the value of a dotted setting."""
    for name in key.split("."):
        config = getattr(config, name)
    return config


def put_at(config: Any, key: str, value: Any) -> None:
    """Change the value of a dotted setting."""
    section, _, name = key.rpartition(".")
    setattr(value_at(config, section) if section else config, name, value)


def copy_of(config: Any) -> Any:
    """Return a configuration with sections of its own, in a tenth of the time of `deepcopy`."""
    own = copy(config)
    for name, value in vars(config).items():
        if is_dataclass(value):
            setattr(own, name, copy_of(value))
        elif isinstance(value, (list, dict)):
            setattr(own, name, deepcopy(value))
    return own


def describe(hint: Any) -> str:
    """Say in words what values a type hint stands for."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(member.name for member in hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Union:
        words = [repr_auto(hint, argument) for argument in arguments]
        return " or ".join(words)
    if origin is dict:
        return "a mapping of names to texts"
    if origin is list:
        return f"a list, each item {describe(arguments[0])}"
    return _WORDS.get(hint, "a value")


def repr_auto(union: Any, argument: Any) -> str:
    """Name one member of a union; `str` beside a number stands for the word `auto`."""
    if argument is str and type(None) not in get_args(union):
        return AUTO
    return describe(argument)


def _collect(node: type, prefix: str, leaves: dict[str, Any], sections: set[str]) -> None:
    hints = get_type_hints(node)
    for item in fields(node):
        key, hint = f"{prefix}{item.name}", hints[item.name]
        if is_dataclass(hint) and isinstance(hint, type):
            sections.add(key)
            _collect(hint, f"{key}.", leaves, sections)
        else:
            leaves[key] = hint
