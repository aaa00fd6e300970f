"""Documents, chunks and search. Knows no keys and values and no model."""
