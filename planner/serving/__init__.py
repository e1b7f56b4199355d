"""Serving engines: how they divide a card."""
