"""A finished model in a few bits a weight: calibration rows, GPTQ, and what the result is worth."""
