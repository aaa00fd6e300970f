"""vLLM goes on with prompts that kvweave has put in place. vLLM loads `vllm_kvweave.connector`; nothing else need be
imported.
"""
