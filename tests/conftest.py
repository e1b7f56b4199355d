"""Puts this folder in reach of imports: helpers of unit and integration tests alike lie beside this file."""
