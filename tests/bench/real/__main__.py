"""Measures a real model on real prose: `python -m tests.bench.real` for the line of marks, `--plan grid` for the cells.

Each prompt is a line of a file, so a run that is stopped goes on where it was, and other rows can be added to the same
prompts. `--show` prints the tables of what there is and measures nothing.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from blend.adopt.load import LoadedModel, load
from service.app.give_back_memory import keep_freed_memory
from tests.bench.real.articles import TokenCounts, divided, read
from tests.bench.real.material import Material, variants
from tests.bench.real.prompt_probe import PromptProbe
from tests.bench.real.results import MeasuredPrompt, Results
from tests.bench.real.rows import EVERY, PLANS, Cell, Row
from tests.bench.real.tables import table

FOLDER = Path("build/real")
PROMPTS = {"real": 200, "grid": 24}


@dataclass(frozen=True, slots=True)
class Run:
    """What is to be measured of what, and where it is kept. `part`: this process' number, of so many that share it."""

    cells: Sequence[Cell]
    prompts: int
    material: Material
    results: Results
    part: tuple[int, int]


def measure(run: Run, model: LoadedModel, probe: PromptProbe) -> None:
    """Every prompt of every cell, one of each cell in turn, but for what is there already."""
    digest = model.fingerprint.weights
    run.results.check_model(digest)
    part, parts = run.part
    for number in range(part - 1, run.prompts, parts):
        for cell in run.cells:
            start, worked = time.perf_counter(), time.process_time()
            before = run.results.get(cell.name, number)
            wanted = [row for row in cell.rows if before is None or str(row) not in before.rows]
            if wanted:
                found = _measured(cell, number, run=run, probe=probe, rows=wanted, digest=digest)
                run.results.add(found)
                took = f"{time.perf_counter() - start:.0f} s, {time.process_time() - worked:.0f} s of processors"
                print(f"{cell.name}: {number + 1} of {run.prompts}, {took}", file=sys.stderr, flush=True)


def _measured(
    cell: Cell, number: int, *, run: Run, probe: PromptProbe, rows: Sequence[Row], digest: str
) -> MeasuredPrompt:
    case = run.material.draw(cell.suite, cell.shape, number)
    spare = run.material.spare(cell.shape, number)
    asked = probe.asked(case)
    is_first = run.results.get(cell.name, number) is None
    others = variants(case, number, draws=cell.draws, swap=spare) if is_first else {}
    return MeasuredPrompt(
        cell=cell.name,
        number=number,
        model=digest,
        tokens=asked.laid.tokens,
        first_s=asked.full.first_s,
        full=asked.judged(asked.full),
        none=probe.other(asked, case.arranged([])),
        yardstick={name: probe.other(asked, other) for name, other in others.items()},
        rows={str(row): said for row, said in probe.rows(asked, rows).items()},
    )


def chosen(plan: str, names: str, rows: str) -> list[Cell]:
    """The cells of a plan, those of these names if any are named, with these rows instead of their own if any are."""
    cells = [cell for cell in PLANS[plan] if not names or cell.name in names.split(",")]
    if not cells:
        sys.exit(f"no cell is named {names!r}: choose of {', '.join(cell.name for cell in PLANS[plan])}")
    given = EVERY if rows == "every" else tuple(Row.parse(each) for each in rows.split(",") if each)
    return [replace(cell, rows=given) if given else cell for cell in cells]


def _part(text: str) -> tuple[int, int]:
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        sys.exit(f"a part is such as 1/2, got {text!r}")
    return part, parts


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", choices=[*PLANS], default="real")
    parser.add_argument("--prompts", type=int, help="of each cell; 200, or 24 of each of the grid's")
    parser.add_argument("--seed", type=int, default=1, help="of prompts, fillers, and which articles are held out")
    parser.add_argument("--cells", default="", help="names with commas between; all without")
    parser.add_argument("--rows", default="", help="such as context:ask:0.05:q4,isolated:reuse:0:lossless; or every")
    parser.add_argument("--model", type=Path, default=FOLDER / "model", help="a checkpoint's folder")
    parser.add_argument("--prose", type=Path, default=FOLDER / "prose", help="a folder of texts")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the results are")
    parser.add_argument("--part", default="1/1", help="1/2 and 2/2 are two processes that share the prompts")
    parser.add_argument("--show", action="store_true", help="print the tables of what was measured")
    return parser.parse_args()


def main() -> None:
    given = _given()
    results = Results(given.folder / f"{given.plan}-{given.seed}.jsonl")
    cells = chosen(given.plan, given.cells, given.rows)
    if not given.show:
        for folder in (given.model, given.prose):
            if not folder.is_dir():
                sys.exit(f"there is no folder {folder}: `make {given.plan}` fetches it, or name one of your own")
        keep_freed_memory()
        model = load(str(given.model), dtype=given.dtype)
        probe = PromptProbe(model)
        prose = divided(read(given.prose), seed=given.seed)
        material = Material(prose, TokenCounts(probe.count), given.seed)
        run = Run(cells, given.prompts or PROMPTS[given.plan], material, results, _part(given.part))
        try:
            measure(run, model, probe)
        except KeyboardInterrupt:
            sys.exit("stopped: the same command goes on behind the last prompt")
        finally:
            probe.close()
    found = {cell.name: measured for cell in cells if (measured := results.of(cell.name))}
    if not found:
        sys.exit(f"nothing of that was measured with the seed {given.seed} yet")
    for name, measured in found.items():
        print(table(name, measured))


if __name__ == "__main__":
    main()
