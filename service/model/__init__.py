"""What is made of a loaded model: prompts, grammars, logit processors, checked records. Knows no tenant, no catalog."""
