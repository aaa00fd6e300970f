"""Several stores as one, and what a tier with a budget keeps. Knows no medium but memory."""
