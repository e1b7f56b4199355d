"""Transformers as they run: modules, forward pass, loss."""
