"""What a job reads: found, or its absence explained. Nothing here is loaded before it is asked for."""
