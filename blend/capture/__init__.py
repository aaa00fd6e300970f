"""Makes records of chunks: computes them behind their prefix and lifts their keys. Knows no codec and no store."""
