"""Stand-ins for libraries whose kernels need a GPU: they allocate what those do, and compute nothing."""
