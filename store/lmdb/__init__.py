"""Blobs in one LMDB folder. Knows no other medium, and nothing of what a frame holds."""
