"""Two runs or more beside each other: what was different, and what came of it."""
