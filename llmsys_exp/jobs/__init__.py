"""One job from its configuration to its run folder: checked, started, retried, gone on with, exported."""
