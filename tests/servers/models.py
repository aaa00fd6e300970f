"""An embedder and a reranker behind one URL, as remote ones speak. Knows nothing of language."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.retriever.fakes import Longest, WordEmbedder
from tests.servers.listening import listening

Json = dict[str, Any]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        asked: Json = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps(_ranked(asked) if self.path.endswith("/rerank") else _embedded(asked)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def model_server() -> Iterator[str]:
    """Its URL; a model's name is up to whoever asks."""
    with listening(_Handler) as url:
        yield url


def _embedded(asked: Json) -> Json:
    vectors = WordEmbedder().passages(asked["input"])
    return {"data": [{"index": index, "embedding": vector.tolist()} for index, vector in enumerate(vectors)]}


def _ranked(asked: Json) -> Json:
    scores = Longest().scores(asked["query"], asked["documents"])
    return {"results": [{"index": index, "relevance_score": score} for index, score in enumerate(scores)]}
