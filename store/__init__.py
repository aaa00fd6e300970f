"""Bytes: records, codec, blob stores. Knows no torch, no document and no model."""
