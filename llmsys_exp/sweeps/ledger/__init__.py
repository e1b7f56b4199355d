"""What happened to each point."""
