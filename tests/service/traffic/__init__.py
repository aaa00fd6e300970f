"""Tests of what is sent to endpoints, and of what is said of their times."""
