"""Run a recorded run again and compare what comes out, metric by metric, with what was logged."""
