"""Rows of a table as lines that can be read alone: each value stands behind the name of its column. Knows no format."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from retriever.readers.serve import one_line

_LOOKED_AT = 50  # rows that show how wide the table is
_NUMBER = re.compile(r"[-+]?[\d.,:%/ -]*\d[\d.,:%/ -]*")


def table_lines(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """What stands above the table as it is, then a list item for each row. Rows and values that are blank go.

    The header is the first row with more than one value, unless most of it are numbers: then columns are numbered.
    """
    filled = (row for row in ([one_line(cell) for cell in row] for row in rows) if any(row))
    first = list(islice(filled, _LOOKED_AT))
    is_wide = any(_count(row) > 1 for row in first)
    while is_wide and _count(first[0]) == 1:
        yield "".join(first.pop(0)) + "\n"
    names = first.pop(0) if first and not _is_numbers(first[0]) else []
    if names and not first:
        yield "; ".join(filter(None, names))
    for row in chain(first, filled):
        told = ((names[at : at + 1] or [""])[0] or f"column {at + 1}" for at in range(len(row)))
        yield "- " + "; ".join(f"{name}: {value}" for name, value in zip(told, row, strict=True) if value)


def _count(row: Sequence[str]) -> int:
    return sum(map(bool, row))


def _is_numbers(row: Sequence[str]) -> bool:
    return 2 * sum(_NUMBER.fullmatch(cell) is not None for cell in row if cell) > _count(row)
