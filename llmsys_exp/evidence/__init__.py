"""Evidence: what a run was done with and on, one module for each kind; a piece that fails stops no run."""
