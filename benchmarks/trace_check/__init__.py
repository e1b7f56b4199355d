"""Live bytes of the real transformers code, traced without a GPU, beside what the planner says."""
