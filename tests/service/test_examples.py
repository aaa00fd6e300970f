"""The examples of `docs/endpoints.md`, sent one after the other as they stand there."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.examples import examples_in
from tests.service.serving import finished, in_process, settings_in

ROOT = Path(__file__).parents[2]
WITHOUT_SETTING = ("/v1/rerank", "/v1/embeddings")  # as the page says
VALUES = ("job_id", "handle")


def test_each_example_is_answered(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "endpoints.md").read_text(encoding="utf-8")
    known: dict[str, str] = {}
    with in_process(settings_in(tmp_path)) as inside, inside.client() as client:
        for example in examples_in(page):
            path = filled(example.path, known)
            parts: Any = [(name, part(value)) for name, value in example.form] or None
            answer = client.request(example.method, path, json=example.body, files=parts)
            assert answer.is_success != (path in WITHOUT_SETTING), f"{example}: {answer.text}"
            if answer.headers.get("content-type", "") == "application/json":
                told = answer.json()
                known |= {name.removesuffix("_id").upper(): told[name] for name in VALUES if name in told}
                if told.get("object") == "response":
                    known["RESPONSE"] = told["id"]
                if "job_id" in told:
                    assert finished(client, told["job_id"])["status"] == "done"


def part(value: str) -> tuple[str | None, bytes]:
    """A field of a form, or a file."""
    name = value.removeprefix("@")
    return (None, value.encode()) if name == value else (name, (ROOT / name).read_bytes())


def filled(path: str, known: Mapping[str, str]) -> str:
    """With the values of its variables."""
    return re.sub(r"\$([A-Z]+)", lambda name: known[name[1]], path)
