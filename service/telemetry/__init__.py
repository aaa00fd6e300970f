"""Metrics, logs and traces: what operators see."""
