"""The tier `dryrun`: one rank of a job, run for real on one GPU, started and read from here."""
