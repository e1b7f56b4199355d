"""The configuration tree as plain Python values and back, without OmegaConf.

`job.json` is written with `to_plain` and read with `from_plain`; for every configuration
`from_plain(to_plain(config)) == config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from llmsys_exp.config.schema import Config
from llmsys_exp.errors import ConfigError, UserError, closest

T = TypeVar("T")
_NOTHING = type(None)


def to_plain(value: Any) -> Any:
    """Turn dataclasses into dictionaries and enums into their names, all the way down."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: to_plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): to_plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(one) for one in value]
    return value


def from_plain(data: Mapping[str, Any], kind: type[T] = Config) -> T:
    """Build a dataclass of type `kind`; keys that are left out take their default.

    Raises:
        ConfigError: Unknown keys or values of a wrong type, all of them at once.
    """
    problems: list[UserError] = []
    built = _dataclass(kind, data, at="", problems=problems)
    if problems:
        raise ConfigError(problems)
    return built


def _dataclass(kind: type[T], data: Any, *, at: str, problems: list[UserError]) -> T:
    if not isinstance(data, Mapping):
        problems.append(UserError(f"{at or 'the configuration'} must be a group of settings, not {data!r}"))
        return kind()
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in data.items():
        path = f"{at}.{key}" if at else str(key)
        if key in hints:
            values[key] = _convert(hints[key], value, at=path, problems=problems)
        else:
            problems.append(_unknown(path, near=closest(str(key), hints)))
    return kind(**values)


def _unknown(path: str, *, near: str) -> UserError:
    parent = path.rpartition(".")[0]
    suggestion = f"{parent}.{near}" if parent else near
    return UserError(f"{path} is not a setting", do=f"Did you mean {suggestion}?" if near else "")


def _convert(hint: Any, value: Any, *, at: str, problems: list[UserError]) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return _dataclass(hint, value, at=at, problems=problems)
    if origin is list and isinstance(value, (list, tuple)):
        return [_convert(inner[0], one, at=f"{at}[{n}]", problems=problems) for n, one in enumerate(value)]
    if origin is dict and isinstance(value, Mapping):
        return {
            str(key): _convert(inner[1], one, at=f"{at}.{key}", problems=problems)
            for key, one in value.items()
        }
    accepted, converted = _scalar(inner if origin is Union else (hint,), value)
    if not accepted:
        problems.append(UserError(f"{at} cannot be {value!r}", do=f"It takes {_describe(hint)}"))
    return converted


def _scalar(kinds: tuple[Any, ...], value: Any) -> tuple[bool, Any]:
    """Return whether one of `kinds` takes the value, and the value in that kind."""
    for kind in kinds:
        if kind is Any or (kind is _NOTHING and value is None):
            return True, value
        is_word = isinstance(kind, type) and issubclass(kind, Enum) and isinstance(value, str)
        if is_word and value in kind.__members__:
            return True, kind[value]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return True, float(value)
        # bool is a subclass of int, and a switch is no number
        if isinstance(kind, type) and type(value) is kind:
            return True, value
    return False, value


def _describe(hint: Any) -> str:
    kinds = get_args(hint) if get_origin(hint) is Union else (hint,)
    words = []
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Enum):
            words.append(", ".join(kind.__members__))
        elif kind is _NOTHING:
            words.append("null")
        else:
            words.append(getattr(kind, "__name__", str(kind)))
    return " or ".join(words)
