"""GPU memory: the emulated allocator and buffers that live in it."""
