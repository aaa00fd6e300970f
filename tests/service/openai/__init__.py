"""Tests of the OpenAI-compatible interface."""
