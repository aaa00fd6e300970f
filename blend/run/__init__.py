"""A model's passes over rows: its layers, what each row sees, buffers, CUDA graphs, kept prefixes. Knows no texts."""
