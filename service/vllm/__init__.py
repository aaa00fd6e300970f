"""Prompts that are put in place here and go on in vLLM: what it fetches, and vLLM as the generator. Knows no route."""
