"""Several stores as one, and what a tier with a budget keeps."""
