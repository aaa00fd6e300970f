"""Models and tensors: checkpoints taken, chunks captured, prompts fused, answers decoded. Knows no documents."""
