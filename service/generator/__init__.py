"""vLLM as the generator: prompts are put in place here, and go on there."""
