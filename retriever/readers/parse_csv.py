"""Tables of separated values inside a child process: which sign separates, a line each row with its header."""

import csv
import io
import re
import sys

from retriever.readers.serve import Findings, clean
from retriever.readers.table_rows import table_lines

_SAMPLE = 1 << 16  # characters that tell what separates
_SEPARATORS = ",;\t|"
_TOLD = re.compile(r"sep=([^\w\s\"]|\t)\r?\n", re.IGNORECASE)  # a first line that Excel writes for itself


def parse(content: bytes) -> Findings:
    """The rows. `content` is UTF-8; what separates is what splits most lines of the beginning alike."""
    text = clean(content.decode("utf-8"))
    told = _TOLD.match(text)
    text, separator = (text[told.end() :], told[1]) if told else (text, _separator(text[:_SAMPLE]))
    csv.field_size_limit(sys.maxsize)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    return Findings(("\n".join(table_lines(rows)),))


def _separator(sample: str) -> str:
    """The one that gives most rows of the sample one and the same number of values, and more than one."""

    def fit(separator: str) -> tuple[int, int]:
        widths = [len(row) for row in csv.reader(io.StringIO(sample, newline=""), delimiter=separator) if row]
        usual = max(set(widths), key=widths.count, default=1)
        return (widths.count(usual), usual) if usual > 1 else (0, 0)

    return max(_SEPARATORS, key=fit)
