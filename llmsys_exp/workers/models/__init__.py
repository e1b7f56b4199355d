"""Models and tokenizers: loaded, built with random weights, or quantised."""
