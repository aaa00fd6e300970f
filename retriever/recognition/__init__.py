"""The text of known chunks found in a prompt, wherever it stands."""
