"""Rivals beside the planner: the same rows, the metric that the rival says it predicts."""

from __future__ import annotations

import pandas as pd

TRUTH = {
    "allocated": ("measured_gib", "forecast_peak_allocated_gib"),
    "reserved": ("measured_reserved_gib", "forecast_peak_reserved_gib"),
    "process": ("measured_process_gib", "forecast_device_used_gib"),
}
RIVAL = ["rival", "version", "metric"]


def scored(frame: pd.DataFrame, answers: pd.DataFrame) -> pd.DataFrame:
    """One line a rival and setting in its scope, with both errors; a setting measured twice counts once."""
    if "predicted_gib" not in answers:
        return pd.DataFrame(columns=[*RIVAL, "theirs", "ours"])
    inside = answers[answers["predicted_gib"].notna()]
    joined = frame.merge(inside, on="id").drop_duplicates(["rival", "setting"]).copy()
    for side in ("theirs", "ours"):
        joined[side] = float("nan")
    for metric, (measured, forecast) in TRUTH.items():
        those = joined["metric"] == metric
        truth = joined.loc[those, measured].astype(float)
        joined.loc[those, "theirs"] = 100 * (joined.loc[those, "predicted_gib"] / truth - 1)
        joined.loc[those, "ours"] = 100 * (joined.loc[those, forecast] / truth - 1)
    return joined.dropna(subset=["theirs"])  # a limit on the allocator hides what it would have reserved


def against_rivals(frame: pd.DataFrame, answers: pd.DataFrame, by: str | None = None) -> pd.DataFrame:
    """Mean, median and worst error of each rival and of the planner on the same rows."""
    groups = scored(frame, answers).groupby(RIVAL if by is None else [*RIVAL, by], sort=False)
    columns: dict[str, pd.Series] = {"settings": groups.size()}
    for side in ("theirs", "ours"):
        errors = groups[side]
        columns[f"{side} mean"] = errors.apply(lambda e: e.abs().mean())
        columns[f"{side} median"] = errors.apply(lambda e: e.abs().median())
        columns[f"{side} worst"] = errors.apply(lambda e: e.loc[e.abs().idxmax()])
    return pd.DataFrame(columns).round(2)


def out_of_scope(frame: pd.DataFrame, answers: pd.DataFrame) -> pd.DataFrame:
    """Settings of each rival: scored, outside its scope, failed."""
    known = frame[["id", "setting"]].merge(answers, on="id").drop_duplicates(["rival", "setting"])
    state = pd.Series("outside its scope", index=known.index)
    state[known.get("predicted_gib", pd.Series(index=known.index)).notna()] = "answered"
    if "failed" in known:
        state[known["failed"].notna()] = "failed"
    return known.groupby(["rival", state.rename("state")], sort=False).size().unstack(fill_value=0)
