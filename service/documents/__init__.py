"""A document's way, an upload's or a corpus file's, until it serves with its chunks' caches. Knows no requests."""
