"""The band around what a job requires, where limits bracket the boundary of failure."""

from benchmarks.boundaries import boundaries


def test_known_boundaries_lie_inside_the_band():
    """Not frozen before they were measured, but no constant was fitted to them."""
    table = boundaries(both_sides=True)
    assert len(table) >= 5
    assert not (table["failed up to"] >= table["high"]).any()
    assert not (table["survived from"] < table["low"]).any()
