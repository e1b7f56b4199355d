"""Run the command line with `python -m llmsys_exp`."""

from __future__ import annotations

from llmsys_exp.cli.main import main

main()
