"""The OpenAI-compatible interface, a rendering of the pipeline."""
