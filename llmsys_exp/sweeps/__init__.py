"""Sweeps: points, gate, ledger, leases, runner. Parent side: nothing here imports torch."""
