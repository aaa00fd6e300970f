"""The model that comes with kvweave: where its checkpoint and operating point lie. See README.md in this folder."""

from pathlib import Path

CHECKPOINT = Path(__file__).parent / "checkpoint"
POINT = Path(__file__).parent / "operating_point.toml"  # how it was found is in README.md
