"""What people see: tables, bars, plots, the summary."""
