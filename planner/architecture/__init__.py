"""Shapes of models, read from Hugging Face configurations."""
