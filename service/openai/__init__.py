"""OpenAI's interface, a rendering of the pipeline. Retrieves nothing and computes nothing."""
