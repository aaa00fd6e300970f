"""Documents, chunks and search. Knows no keys and values and no language model."""
