"""Automatic differentiation over sizes."""
