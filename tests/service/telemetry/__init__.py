"""Tests of what the service tells about itself."""
