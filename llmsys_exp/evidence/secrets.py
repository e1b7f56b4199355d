"""What looks like a secret: names of files, names of variables, and text. Records name what was left out.

A file that is left out for nothing costs a repeated run one file; a key in a record costs its owner the key.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

LEFT_OUT = "(left out as a secret)"
"""A word that YAML takes as text wherever it stands."""

_FILES = (
    *(".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".pgpass", ".htpasswd", ".npmrc", ".pypirc"),
    *(".git-credentials", ".dockercfg", "kubeconfig", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.ppk"),
    *(
        "*.keystore",
        "*.kdbx",
        "id_rsa*",
        "id_dsa*",
        "id_ecdsa*",
        "id_ed25519*",
        "token",
        "token.txt",
        "*.token",
    ),
    *(
        "credentials",
        "credentials.*",
        "*credentials.json",
        "*secret.*",
        "*secrets.*",
        "service-account*.json",
    ),
)
_EXAMPLES = ("*.example", "*.sample", "*.template", "*.dist", "*.py")
_FOLDERS = {".ssh", ".aws", ".gnupg", ".kube", ".docker"}
_WORDS = {"TOKEN", "KEY", "APIKEY", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASS", "CREDENTIALS", "AUTH"}
_CODE = (".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".cu", ".cuh", ".js", ".ts", ".rs", ".go", ".java")

_KNOWN = {
    "-----BEGIN ": re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY"),
    **dict.fromkeys(("AKIA", "ASIA"), re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    **dict.fromkeys(("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), re.compile(r"\bgh[pousr]_[A-Za-z0-9]{36}")),
    "github_pat_": re.compile(r"\bgithub_pat_[A-Za-z0-9_]{22}"),
    "glpat-": re.compile(r"\bglpat-[A-Za-z0-9_-]{20}"),
    "hf_": re.compile(r"\bhf_[A-Za-z0-9]{30}"),
    "sk-": re.compile(r"\bsk-[A-Za-z0-9_-]{20}"),
    "xox": re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10}"),
    "AIza": re.compile(r"\bAIza[0-9A-Za-z_-]{35}"),
    "nvapi-": re.compile(r"\bnvapi-[A-Za-z0-9_-]{40}"),
    "hooks.slack.com/": re.compile(r"hooks\.slack\.com/services/\w+/\w+/\w{16}"),
    "pypi-": re.compile(r"\bpypi-[A-Za-z0-9_-]{40}"),
    "eyJ": re.compile(r"\beyJ[A-Za-z0-9_-]{10,500}\.eyJ[A-Za-z0-9_-]{10}"),
}
"""Beginnings of keys of well-known services, with the whole pattern."""
_ADDRESS = "://"
_IN_ADDRESS = re.compile(r"://[^/\s:@]{1,80}:([^/\s@]{3,200})@")
_UNNAMED = (
    (("bearer ", "token ", "basic "), re.compile(r"\w+[ \t]+([A-Za-z0-9._~+/=-]{16,400})")),
    (("-key ", "_key ", "-token ", "_token "), re.compile(r"[-_]\w+[ \t]+[\"']?([^\s\"']{16,400})")),
    (("login(",), re.compile(r"login\([ \t]*(?:key|token)?[ \t]*=?[ \t]*[\"']([^\s\"']{16,400})")),
)
"""Marks, and a value behind them without a name and `=`: headers, arguments of commands, Dockerfiles."""
_NETRC = re.compile(r"login[ \t]+\S{1,200}[\s+-]+password[ \t]+(\S{3,400})")
_NAMED = re.compile(
    r"(?i)(?<![a-z])(pass(?:word|wd|phrase)|secret(?:[_-]?key)?|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|(?:auth|access|api|hub|bearer)[_-]?token|token)[\"']?\]?[ \t]{0,8}(?::=|[:=])[ \t]{0,8}"
    r"(?:\"([^\"\s]{6,400})\"|'([^'\s]{6,400})'|([^\s\"',;#]{6,400})[ \t]*(?=[\r\n,;#]|$))",
    re.MULTILINE,
)
_NAMES = ("pass", "secret", "api", "access", "private", "auth", "hub", "bearer", "token")
_STAND_IN = re.compile(
    r"(?i)^[<\[{$%*.x-]|^(?:changeme|password|secret|example|your|dummy|none|null|true|false)"
)
_NAME_OF_CODE = re.compile(r"[A-Za-z_][\w.]*[\[({]?.*")


def is_secret_file(path: str) -> bool:
    """Whether a file is one that keeps secrets by custom, whatever it holds."""
    parts = PurePosixPath(path)
    name = parts.name.lower()
    if any(fnmatchcase(name, pattern) for pattern in _EXAMPLES):
        return False
    return any(fnmatchcase(name, pattern) for pattern in _FILES) or not _FOLDERS.isdisjoint(parts.parts[:-1])


def is_secret_name(variable: str) -> bool:
    """Whether a variable of the environment holds a secret by its name.

    >>> is_secret_name("WANDB_API_KEY"), is_secret_name("TOKENIZERS_PARALLELISM")
    (True, False)
    """
    return not _WORDS.isdisjoint(re.split(r"[_\W]+", variable.upper()))


def holds_secret(text: str, *, suffix: str = "") -> bool:
    """Whether a text holds what looks like a key or a password.

    Args:
        text: a file, a part of a patch, or a value.
        suffix: of the file; in code a bare word behind `token =` is a name, in a settings file it is a value.
    """
    if any(_found(mark, pattern, text) for mark, pattern in _KNOWN.items()):
        return True
    if any(not _STAND_IN.match(one[1]) for one in _matches(text, _ADDRESS, _IN_ADDRESS, text)):
        return True
    # a byte a character, so that places are the same in both
    lowered = text.encode("latin-1", "replace").lower().decode("latin-1")
    if any(not _STAND_IN.match(one[1]) for one in _matches(lowered, "login", _NETRC, text)):
        return True
    bare = (
        one[1]
        for marks, pattern in _UNNAMED
        for mark in marks
        for one in _matches(lowered, mark, pattern, text)
    )
    if any(_is_random(one) and not _STAND_IN.match(one) and "(" not in one for one in bare):
        return True
    named = (one for name in _NAMES for one in _matches(lowered, name, _NAMED, text))
    return any(_is_real(one, in_code=suffix in _CODE) for one in named)


def _found(mark: str, pattern: re.Pattern[str], text: str) -> bool:
    return next(_matches(text, mark, pattern, text), None) is not None


def _matches(where: str, mark: str, pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield what matches in a text where a mark begins: to try a pattern everywhere takes far longer."""
    at = where.find(mark)
    while at >= 0:
        found = pattern.match(text, at)
        if found is not None:
            yield found
        at = where.find(mark, at + 1)


def _is_real(found: re.Match[str], *, in_code: bool) -> bool:
    quoted, bare = found[2] or found[3], found[4]
    value = quoted or bare or ""
    if _STAND_IN.match(value):
        return False
    if bare and in_code:
        return False
    if found[1].lower().startswith("pass"):
        return quoted is not None or not any(one in value for one in "([{")
    return _is_random(value) and "(" not in value


def _is_random(value: str) -> bool:
    mixed = any(one.isdigit() for one in value) and any(one.isalpha() for one in value)
    return mixed and len(value) >= 16 and _bits(value) > 3


def _bits(value: str) -> float:
    """Entropy of a character, in bits: words have about three, random keys more."""
    counts = Counter(value).values()
    return -sum(count / len(value) * math.log2(count / len(value)) for count in counts)


def without_secrets(value: Any) -> Any:
    """Return settings with every text that looks like a secret, and every value so named, replaced."""
    if isinstance(value, Mapping):
        return {
            key: LEFT_OUT if _names_secret(key, one) else without_secrets(one) for key, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [without_secrets(one) for one in value]
    return LEFT_OUT if isinstance(value, str) and holds_secret(value) else value


def secret_variables(variables: Mapping[str, str]) -> list[str]:
    """Return the names of variables that hold secrets, by their name or by their value."""
    return [name for name, value in variables.items() if value and _is_secret(name, value)]


def text_without_secrets(text: str, variables: Mapping[str, str]) -> str:
    """Return YAML or a command line in which values that are given to secret variables are replaced."""
    for name in secret_variables(variables):
        value = re.escape(variables[name])
        assigned = rf"({re.escape(name)}['\"]?\s*[:=]\s*)(['\"]?){value}\2"
        text = re.sub(assigned, lambda found: f"{found[1]}{LEFT_OUT}", text)
    return text


def arguments_without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return a command line whose values that look like secrets are replaced; the keys stay."""
    return [_argument(text) for text in arguments]


def _argument(text: str) -> str:
    key, equals, value = text.partition("=")
    variable = key.rpartition(".")[2]
    # launcher.env={A_KEY: ...} names variables inside of the value
    named = re.findall(r"[A-Z][A-Z0-9_]+(?=\s*:)", value) if key.endswith("launcher.env") else [variable]
    secret = any(one.isupper() and is_secret_name(one) for one in named)
    if equals and value and (secret or holds_secret(value)):
        return f"{key}={LEFT_OUT}"
    return LEFT_OUT if holds_secret(text) else text


def _is_secret(name: str, value: str) -> bool:
    return is_secret_name(name) or holds_secret(value)


def _names_secret(key: Any, value: Any) -> bool:
    """Settings are in small letters, variables in capitals: `save_key: true` is no secret."""
    return (
        isinstance(key, str)
        and isinstance(value, str)
        and bool(value)
        and key.isupper()
        and is_secret_name(key)
    )
