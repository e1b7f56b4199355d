"""Set-up: what uv is told of pip's settings."""

import runpy
from pathlib import Path

import pytest

uv_variables = runpy.run_path(str(Path(__file__).parents[2] / "scripts/uv_install.py"))["uv_variables"]
BEST = {"UV_INDEX_STRATEGY": "unsafe-best-match"}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], {}),
        (["global.index-url='https://a/simple'"], {"UV_DEFAULT_INDEX": "https://a/simple"}),
        (["global.find-links='/one /two'", "wheel.timeout='9'"], {"UV_FIND_LINKS": "/one,/two"}),
        (
            [":env:.find-links='/new'", "global.find-links='/old'", "global.quiet='1'"],
            {"UV_FIND_LINKS": "/new"},
        ),
        (["install.cert='/my certs.pem'"], {"SSL_CERT_FILE": "/my certs.pem"}),
    ],
    ids=["nothing", "index", "places", "variable-wins", "certificates"],
)
def test_uv_is_told_what_pip_is(lines, expected):
    assert uv_variables(lines) == expected | BEST


def test_what_uv_cannot_be_told_is_left_to_pip():
    assert uv_variables(["global.user='true'"]) is None
