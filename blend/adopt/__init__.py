"""Accepts a checkpoint or refuses it with the reason: loads, runs, compares and identifies it. Serves no requests."""
