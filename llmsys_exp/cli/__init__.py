"""The command line: verbs, help, Hydra's grammar."""
