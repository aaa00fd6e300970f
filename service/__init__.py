"""Composes retriever, blend and store into what users meet: REST, command line, settings."""
