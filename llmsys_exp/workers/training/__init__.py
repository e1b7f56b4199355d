"""The training loop and what happens around it: engine, memory, checkpoints, evaluation, saving."""
