"""Points as tasks of Ray."""
