"""Points as tasks of Slurm."""
