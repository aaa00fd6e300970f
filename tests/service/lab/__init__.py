"""Tests of what measures and shows the service."""
