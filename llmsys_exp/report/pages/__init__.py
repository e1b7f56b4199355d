"""Reports as single HTML files that open from disk and ask nothing of the network."""
