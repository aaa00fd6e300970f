"""Tests of the client distributions as a whole; each has tests of its own beside it."""
