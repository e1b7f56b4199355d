"""Compose, plan, launch and record LLM fine-tuning and serving experiments."""
