"""Finding drifts, one module for each part of a record."""
