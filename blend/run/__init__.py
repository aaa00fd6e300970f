"""A model's passes over rows: its layers, what each row sees, buffers, recordings. Knows no texts and no prompts."""
