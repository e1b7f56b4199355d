"""Answering a file of prompts: read, ordered, asked, written down as they finish, measured."""
