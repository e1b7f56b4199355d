"""Processes that do the heavy work: training, export, inference. Only here are heavy packages imported."""
