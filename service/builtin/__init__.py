"""The model that comes with kvweave: its tokenizer, its training, its checkpoint. See README.md in this folder."""

from pathlib import Path

CHECKPOINT = Path(__file__).parent / "checkpoint"
