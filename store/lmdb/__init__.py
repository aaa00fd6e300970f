"""Blobs in one LMDB folder."""
