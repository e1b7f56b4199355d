"""Estimates for thousands of settings at once: closed forms over activation profiles, in numpy arrays.

The full play (`planner/training.py`) answers for one setting exactly; a grid ranks many and leaves the
last word to it.
"""
