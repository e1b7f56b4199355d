"""Search: points that Optuna suggests while a sweep runs."""
