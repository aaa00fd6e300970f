"""The command `kvweave demo`."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

if TYPE_CHECKING:
    from service.demo import Outcome

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def demo(*, as_json: AsJson = False) -> None:
    """Ask the built-in model from stored chunks, and show what each codec makes of a chunk's cache."""
    from service.demo import PASSAGES, POLICIES, show_answers, show_codecs

    if as_json:
        answers = [asdict(row) for row in show_answers()]
        typer.echo(json.dumps({"answers": answers, "codecs": [asdict(row) for row in show_codecs()]}, indent=2))
        return
    for passage in PASSAGES:
        typer.echo(f"{passage.title}: {passage.text}")
    question = Column("question", no_wrap=True)
    numbers = ("first ms", "reused", "again", "prompt")
    asked = Table(question, "policy", "answer", *numbers, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for row in show_answers():
        cells = (f"{row.first_token_ms:.1f}", str(row.reused), str(row.recomputed), str(row.prompt))
        asked.add_row(row.question, row.policy, row.answer, *cells, end_section=row.policy == POLICIES[-1])
    Console().print(asked)
    typer.echo("Every answer is the built-in model's own: full reads all text, the others reuse chunks stored as q4.\n")
    table = Table("codec", "bytes", "ratio", "bits per value", "rms error", "GB/s read")
    for row in show_codecs():
        table.add_row(*_cells(row))
    Console().print(table)
    typer.echo("GB/s counts 16-bit bytes: to plain arrays for lossless, to packed codes for the others, one core.")


def _cells(row: "Outcome") -> list[str]:
    return [
        row.codec,
        f"{row.nbytes:,}",
        f"{row.ratio:.2f}",
        f"{row.bits:.2f}",
        f"{row.rms_error:.4f}",
        f"{row.read_gb_s:.2f}",
    ]
