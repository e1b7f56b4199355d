"""Public memory cases translated into planner cases, with what the translation could not carry over."""
