"""Data, pipeline and tensor parallelism on a small model: one step each, measured beside the formulas."""
