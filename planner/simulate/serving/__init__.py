"""SGLang's own model code on shapes: a prefill chunk and a decode step, in a process of their own."""
