"""The engine that answers requests: the queue, continuous batching, sampling, stop strings. Knows no documents."""
