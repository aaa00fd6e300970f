"""What shows kvweave at work on the built-in model: a sample corpus, questions, and the run that puts them together."""
