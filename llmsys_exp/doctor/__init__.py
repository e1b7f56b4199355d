"""Looks around before a run does: one module a subject, one finding a line, each with what mends it."""
