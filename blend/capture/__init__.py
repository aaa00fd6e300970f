"""Makes records of chunks: computes them behind their prefix, and frees their keys of positions. Knows no store."""
