"""The tier that runs the real model and DeepSpeed's real engine on shapes, and records what they allocate."""
