"""Other tools' memory forecasts on the planner's measured rows, each within the scope that it states itself."""
