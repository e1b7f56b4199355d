"""Points on this machine: leases, jobs, the runner."""
