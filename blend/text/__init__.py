"""Turns texts and chat messages into token ids, and ids into text as they come. Knows no tensors and no model."""
