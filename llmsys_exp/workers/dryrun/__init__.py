"""One rank of a training job, run for real while the other ranks are not there."""
