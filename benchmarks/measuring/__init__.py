"""Runs a training case for real on one GPU and notes what it takes."""
