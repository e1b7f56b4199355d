"""Jobs of any Hydra program under our leases: what stands behind `hydra/launcher=llmsys_lease`."""
