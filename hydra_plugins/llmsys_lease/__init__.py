"""Makes llmsys' leases a launcher of Hydra."""
