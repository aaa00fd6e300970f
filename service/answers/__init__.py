"""The way from a question to its answer: one stream of events that all interfaces render. Knows no HTTP."""
