"""What was measured, one line of JSON a prompt, in a file that grows: a run that was stopped goes on behind its end."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import msgspec

REORDERED = "foreign passages reordered"  # how the yardstick's prompts are named, with a number behind


@dataclass(frozen=True, slots=True)
class Judged:
    """What one way of computing a prompt says of the known answer. `kl`, `top1`: from full prefill, over its tokens.

    `nats`: of a token of the answer. `right`: whether the right one of the candidates was preferred; none without any.
    `first`: the time to the first token in parts of full prefill's, and `work` the processors' time until then, which
    other work on the machine changes less.
    """

    kl: float
    top1: float
    nats: float
    right: bool | None
    first: float
    work: float
    reused: int
    recomputed: int


@dataclass(frozen=True, slots=True)
class MeasuredPrompt:
    """One prompt. `model`: the digest of the weights. `rows` and `yardstick` by their names; `first_s` is full's."""

    cell: str
    number: int
    model: str
    tokens: int
    first_s: float
    full: Judged
    none: Judged
    yardstick: dict[str, Judged]
    rows: dict[str, Judged]

    @property
    def yardstick_kl(self) -> float:
        """How far full prefill itself goes where passages that do not matter change places."""
        return fmean(said.kl for name, said in self.yardstick.items() if name.startswith(REORDERED))

    def joined(self, later: "MeasuredPrompt") -> "MeasuredPrompt":
        """The same prompt with what was measured of it later."""
        return replace(self, rows=self.rows | later.rows, yardstick=self.yardstick | later.yardstick)


class Results:
    """The file of one seed. A line that was cut off is as if it had not been written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[tuple[str, int], MeasuredPrompt] = {}
        for each in self._lines():
            self._join(each)

    def of(self, cell: str) -> list[MeasuredPrompt]:
        """What there is of a cell, in the prompts' order."""
        return [each for (name, _), each in sorted(self._kept.items()) if name == cell]

    def get(self, cell: str, number: int) -> MeasuredPrompt | None:
        """What there is of a prompt."""
        return self._kept.get((cell, number))

    def add(self, measured: MeasuredPrompt) -> None:
        """Keep it, on disk as well when this returns."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        line = msgspec.json.encode(measured) + b"\n"
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(file).st_size
            is_cut = size > 0 and os.pread(file, 1, size - 1) != b"\n"
            os.write(file, b"\n" + line if is_cut else line)  # by one call: another process may write as well
            os.fsync(file)
        finally:
            os.close(file)
        self._join(measured)

    def check_model(self, digest: str) -> None:
        """Raise ValueError where the file is of another model."""
        others = {each.model for each in self._kept.values()} - {digest}
        if others:
            raise ValueError(f"{self._path} is of another model, {', '.join(others)}: name another seed or folder")

    def _join(self, measured: MeasuredPrompt) -> None:
        key = measured.cell, measured.number
        before = self._kept.get(key)
        self._kept[key] = before.joined(measured) if before else measured

    def _lines(self) -> Iterator[MeasuredPrompt]:
        decoder = msgspec.json.Decoder(MeasuredPrompt)
        for line in self._path.read_bytes().split(b"\n") if self._path.exists() else ():
            try:
                yield decoder.decode(line)
            except msgspec.ValidationError as error:
                raise ValueError(f"{self._path} is of another release: name another seed or folder") from error
            except msgspec.DecodeError:  # cut off, or empty
                continue
