"""The real vLLM with our connector, beside a service. `make test-vllm` runs these in two environments."""
