"""Rows, token ids, batches and their order."""
