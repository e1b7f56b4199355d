"""What this machine does beside the planner's constants: measured in runs, kept, used by plans."""
