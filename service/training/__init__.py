"""The training of the built-in model. Nothing that serves imports it."""
