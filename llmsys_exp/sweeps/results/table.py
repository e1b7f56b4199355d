"""The tidy table of a sweep as a pandas frame, and as results.csv and results.parquet in its folder."""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import TYPE_CHECKING

from llmsys_exp.report.table_files import flat_parquet_bytes, write_whole
from llmsys_exp.runs.answers import NEEDS
from llmsys_exp.sweeps.folder import Sweep, SweepPaths
from llmsys_exp.sweeps.results.rows import Results, read_results_of

if TYPE_CHECKING:
    import pandas as pd

CSV, PARQUET = "results.csv", "results.parquet"


def frame(results: Results) -> pd.DataFrame:
    """Return the rows as a frame, the point's number as a column; numbers that are not known are NaN."""
    import pandas as pd

    return pd.DataFrame([dict(row) for row in results.rows]).convert_dtypes()


def csv_bytes(results: Results) -> bytes:
    """Return the rows as CSV in UTF-8; what is not known is empty."""
    text = io.StringIO()
    frame(results).to_csv(text, index=False, lineterminator="\n")
    return text.getvalue().encode()


def parquet_bytes(results: Results) -> bytes:
    """Return the rows as a parquet table; a setting whose values are of several kinds becomes text."""
    return flat_parquet_bytes(results.rows)


def write_results(paths: SweepPaths, sweep: Sweep) -> tuple[Results, list[str]]:
    """Read what came of a sweep, and write results.csv and results.parquet; return notes beside the rows.

    Raises:
        UserError: when the disk refuses, or the ledger is damaged.
    """
    results = read_results_of(paths, sweep)
    if not results.rows:
        return results, []
    write_whole(paths.folder / CSV, csv_bytes(results))
    lacking = [name for name in NEEDS if find_spec(name) is None]
    if lacking:
        lack = " and ".join(lacking)
        return results, [f"No {PARQUET} without {lack} (pip install {' '.join(lacking)}); {CSV} has the same"]
    write_whole(paths.folder / PARQUET, parquet_bytes(results))
    return results, []
