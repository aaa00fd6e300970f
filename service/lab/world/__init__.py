"""A made-up world: documents and questions drawn from a seed, to train and to measure models. Knows no model."""
