"""A made-up world: documents and questions drawn from a seed, for the built-in model and for measuring quality."""
