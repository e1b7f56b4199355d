"""Logged against reproduced, metric by metric."""
