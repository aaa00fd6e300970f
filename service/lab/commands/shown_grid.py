"""The result of `kvweave eval` as a table. Measures and chooses nothing."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.table import Column

from service.commands.console import console, many, plain_table, tell

if TYPE_CHECKING:
    from service.lab.eval.grid import GridResult
    from service.lab.eval.result_row import ResultRow, YardstickRow

# What a row shows in each column; what a policy does not look at stays empty.
COLUMNS: dict[str, Callable[["ResultRow"], str]] = {
    "suite": lambda row: row.suite,
    "policy": lambda row: row.policy,
    "ratio": lambda row: "" if _is_fixed(row.policy) else f"{row.ratio:g}",
    "codec": lambda row: "" if row.policy == "full" else row.codec,
    "KL": lambda row: f"{row.kl:.4f}",
    "x": lambda row: "" if row.yardsticks is None else f"{row.yardsticks:.2f}",
    "top-1": lambda row: _share(row.top1),
    "kept": lambda row: _share(row.kept),
    "exact": lambda row: _share(row.exact_match),
    "one": lambda row: _share(row.exact_match_one_chunk),
    "two": lambda row: _share(row.exact_match_two_chunk),
    "F1": lambda row: _share(row.f1),
    "holds": lambda row: _share(row.holds),
    "prefers": lambda row: _share(row.prefers),
    "agrees": lambda row: _share(row.agreement),
    "ttft ms": lambda row: f"{row.ttft_ms:.1f}",
    "sooner": lambda row: f"{row.ttft_speedup:.2f}",
    "B/token": lambda row: "" if row.policy == "full" else f"{row.bytes_per_token:,.0f}",
    "against full": lambda row: row.verdict,
}
NARROW = ("suite", "policy", "ratio", "codec", "KL", "x", "kept", "exact", "F1", "agrees", "sooner")
WIDE = 128  # columns, from which on all are shown


def show_grid(result: "GridResult", sentence: str) -> None:
    """Prints the rows, those of full prefill itself first, and what is recommended."""
    from service.lab.eval.grid import different

    screen = console()
    rows = [
        *map(_yardstick_cells, result.yardsticks),
        *({name: cell(row) for name, cell in COLUMNS.items()} for row in different(result.rows)),
    ]
    rows.sort(key=lambda row: bool(row.get("suite")))  # those of all questions first
    names = tuple(COLUMNS) if screen.width >= WIDE else NARROW
    shown = [name for name in names if any(row.get(name) for row in rows)]
    caption = "KL to full prefill in nats a token; x: how many yardsticks that is; others in percent"
    table = plain_table(
        *map(_column, shown),
        caption=caption if names is not NARROW else f"{caption}; --json and --html tell more",
        collapse_padding=True,
    )
    for row in rows:
        table.add_row(*(row.get(name, "") for name in shown))
    screen.print(table)
    if result.dropped:
        tell(f"{many(result.dropped, 'passage')} did not fit into the model's window and were left out.")
    tell(sentence, style="bold")


def _column(name: str) -> Column:
    is_text = name in ("suite", "policy", "codec", "against full")
    return Column(name, justify="left" if is_text else "right", no_wrap=name != "policy")


def _yardstick_cells(row: "YardstickRow") -> dict[str, str]:
    """Cells of what full prefill itself does in another prompt."""
    if row.kl is None:
        return {}
    return {"suite": row.suite, "policy": "yardstick", "KL": f"{row.kl:.4f}", "x": "1.00", "top-1": _share(row.top1)}


def _is_fixed(policy: str) -> bool:
    from service.lab.eval.grid import FIXED

    return policy in FIXED


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"
