"""Combines several stores into one, and decides what a tier with a budget keeps. Knows no medium but memory."""
