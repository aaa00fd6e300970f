"""Tests of answers that vLLM generates."""
