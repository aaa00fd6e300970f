"""Prompts that are in place and wait to be fetched by whoever goes on with them."""
