"""Run folders as a shelf: found by name, filtered, followed, and cleared away."""
