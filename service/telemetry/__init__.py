"""Metrics, logs and traces: what operators see. Tells no text of documents or requests."""
