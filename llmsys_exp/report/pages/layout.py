"""Put a page together: one HTML file with its style, its scripts and its figures inside.

Charts are small SVGs that our own script draws from the figures in the page. Plotly was looked at first: its
script is 4.5 MB in every page, which a run folder for each point of a sweep cannot afford on a home with a
quota; its parallel coordinates need WebGL, do not say which point a line is, and do not follow a dark theme.
Bokeh (1 MB) has no parallel coordinates, and what puts Vega's script into a page is a package of 35 MB. Ours
are 25 kB, readable at 400 pixels and on paper, and need no `eval`, so that a page can forbid everything else:
the policy in its head lets only these scripts run, by their hashes, and nothing be loaded.

Everything from run folders is untrusted text: templates escape it, and scripts only ever set text.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmsys_exp.errors import UserError
from llmsys_exp.report.table_files import write_whole

if TYPE_CHECKING:
    from jinja2 import Environment

NEEDS = "jinja2"
STYLES = ("page.css", "charts.css")
SCRIPTS = ("svg.js", "lines.js", "scatter.js", "bars.js", "heat.js", "parallel.js", "table.js", "page.js")
GENERATOR = '<meta name="generator" content="llmsys">'
_HERE = "llmsys_exp.report.pages"


def own_version() -> str:
    """Return what wrote a page; a checkout that nobody installed has no version."""
    try:
        return version("llmsys-exp")
    except PackageNotFoundError:
        return "from a checkout"


def check_package() -> None:
    """Refuse to make a page where the package for it is missing.

    Raises:
        UserError: with the command that installs it.
    """
    if find_spec(NEEDS) is None:
        raise UserError(
            f"A report needs {NEEDS}, which is not installed", do="pip install 'llmsys-exp[report]'"
        )


def render(
    template: str, *, charts: Mapping[str, Any], said: Mapping[int, str] | None = None, **context: Any
) -> str:
    """Return a page.

    Args:
        template: name of its template.
        charts: name -> chart, as `figures` makes them; templates place them by name.
        said: number of a point -> what the pointer says of it in every chart.
        context: what else the template shows.

    Raises:
        UserError: when the package for it is missing.
    """
    check_package()
    style, script = _assets(STYLES), _assets(SCRIPTS)
    page = _environment().get_template(template)
    return page.render(
        charts=charts,
        figures=finite({"charts": charts, "said": said or {}}),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        **context,
    )


def is_page(path: Path) -> bool:
    """Whether a file is a page of ours."""
    try:
        with path.open("rb") as stream:
            return GENERATOR.encode() in stream.read(2048)
    except OSError:
        return False


def write_page(path: Path, text: str) -> None:
    """Write a page whole or not at all.

    Raises:
        UserError: when the disk refuses.
    """
    write_whole(path, text.encode("utf-8", errors="replace"))


def finite(content: Any) -> Any:
    """Return plain values with None in place of numbers that JSON does not have."""
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {str(key): finite(value) for key, value in content.items()}
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [finite(value) for value in content]
    return content


def shown(value: Any) -> str:
    """Write a value for a cell: numbers with four digits that matter, nothing for None.

    >>> shown(0.00123456), shown(1234567.8), shown(12), shown(True), shown(None)
    ('0.001235', '1,234,568', '12', 'true', '')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)


@lru_cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["shown"] = shown
    return found


@lru_cache
def _assets(names: Sequence[str]) -> Any:
    from markupsafe import Markup

    folder = files(_HERE) / "assets"
    return Markup("\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names))


def _hash(text: str) -> str:
    digest = hashlib.sha256(f"\n{text}\n".encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
