"""What came of a sweep, as one tidy table."""
