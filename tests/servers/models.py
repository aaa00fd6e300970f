"""An embedder and a reranker behind one URL, as remote ones speak. Knows nothing of language."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.retriever.fakes import Longest, WordEmbedder

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
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _embedded(asked: Json) -> Json:
    vectors = WordEmbedder().passages(asked["input"])
    return {"data": [{"index": index, "embedding": vector.tolist()} for index, vector in enumerate(vectors)]}


def _ranked(asked: Json) -> Json:
    scores = Longest().scores(asked["query"], asked["documents"])
    return {"results": [{"index": index, "relevance_score": score} for index, score in enumerate(scores)]}
