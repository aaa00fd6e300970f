"""What shows kvweave at work on the built-in model: a sample corpus with questions, and a race. Prints nothing."""
