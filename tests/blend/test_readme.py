"""The example of blend's page runs as it stands."""

import re
from pathlib import Path

import pytest
from transformers import LlamaConfig

from tests.blend.families import BASE, build, words

PAGE = Path(__file__).resolve().parents[2] / "blend" / "README.md"


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    build(LlamaConfig(**BASE)).save_pretrained(tmp_path)
    words().save_pretrained(tmp_path)
    [example] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    texts = [" ".join(f"w{3 + (7 * place + number) % 120}" for place in range(60)) for number in range(3)]
    known: dict[str, object] = {"name": str(tmp_path), "texts": texts, "question": "w9 w17"}

    exec(example, known)

    report = known["report"]
    assert (report.reused, report.recomputed) == (60 + 120 - 18, 18)  # type: ignore[attr-defined]
    assert known["answer"]


@pytest.mark.parametrize("policy", ["full", "prefix", "reuse", "heads", "deviation", "hybrid"])
def test_the_page_names_every_policy(policy: str) -> None:
    assert f"| `{policy}` |" in PAGE.read_text("utf-8")
