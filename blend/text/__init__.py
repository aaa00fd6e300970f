"""Texts and chat messages to token ids, and ids to text while they come. Knows no tensors and no model."""
