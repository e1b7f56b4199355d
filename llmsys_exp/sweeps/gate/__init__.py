"""Which points fit: forecasts of all of them, and the cheapest change of those that do not."""
