"""Which points a sweep has: the command line, sweep files, composition."""
