"""DeepSpeed's engines, in what they allocate and free."""
