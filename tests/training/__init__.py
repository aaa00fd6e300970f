"""The training of the built-in model, which comes trained: nothing that is installed imports this."""
