"""Blobs in one LMDB folder. Knows no other medium, and not what the numbers of a frame mean."""
