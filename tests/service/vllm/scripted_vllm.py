"""A vLLM with a script: transformers goes on with what our connector's client fetches. It can do everything wrong."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel

from service.builtin import CHECKPOINT
from vllm_kvweave.source import Part, Refused, Source

Json = dict[str, Any]


@dataclass
class VllmScript:
    """What it does wrong. `kvweave` and `key`: where its connector fetches; None where it has no connector."""

    kvweave: str | None = None
    key: str = ""
    window: int = 4096
    models: tuple[str, ...] = ("tiny",)
    status: int = 200  # of all answers
    shifts_ids: bool = False
    renders: str = ""  # what its template adds
    noise: float = 0.0
    forgets: bool = False  # its connector fetches nothing
    breaks_at: int | None = None  # tokens, then the connection ends
    gate: threading.Event = field(default_factory=threading.Event)  # no token before it is open
    bodies: list[Json] = field(default_factory=list)
    open: int = 0  # answers under way


@cache
def _loaded() -> tuple[Any, PreTrainedModel]:
    """Once for all of them: none changes it."""
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    return AutoTokenizer.from_pretrained(CHECKPOINT), model.eval()


class ScriptedVllm:
    """The model and the script; `complete` is what vLLM does with a prompt."""

    def __init__(self, script: VllmScript) -> None:
        self.script = script
        self.tokenizer, self._model = _loaded()

    def fetched(self, body: Json) -> DynamicCache | None:
        """The keys and values of a prompt that was handed over, if they come."""
        said = (body.get("kv_transfer_params") or {}).get("kvweave")
        if said is None or self.script.kvweave is None or self.script.forgets or not body.get("cache_salt"):
            return None
        cache, stop = DynamicCache(config=self._model.config), said["tokens"] - 1
        try:
            with closing(Source(self.script.kvweave, self.script.key).pull(said["handle"], timeout_s=20)) as pull:
                form = pull.form()
                for each in form.layers:
                    shape = (2, stop, each.key_heads, each.key_dim)
                    found = pull.layer(each, part=Part(0, stop, 0, 1), nbytes=4 * int(np.prod(shape)))
                    both = torch.from_numpy(np.frombuffer(found, np.float32).reshape(shape)).transpose(1, 2)
                    cache.update(both[0][None], both[1][None], each.index)
                pull.release()
        except Refused:
            return None
        return cache

    @torch.inference_mode()
    def logits(self, ids: list[int], cache: DynamicCache) -> torch.Tensor:
        """Those of the last of these ids."""
        found = self._model(torch.tensor([ids]), past_key_values=cache, use_cache=True).logits[0, -1]
        return found + self.script.noise * torch.arange(len(found)).remainder(7)


class VllmHandler(BaseHTTPRequestHandler):
    vllm: ScriptedVllm
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def say(self, body: Json, status: int = 0) -> None:
        text = json.dumps(body).encode()
        self.send_response(status or self.vllm.script.status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        self.say({"data": [{"id": each, "max_model_len": self.vllm.script.window} for each in self.vllm.script.models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.vllm.script.status != 200:
            return self.say({"error": "as the script says"})
        if self.path == "/tokenize":
            return self.say({"tokens": self.token_ids(body)})
        self.vllm.script.bodies.append(body)
        self.vllm.script.open += 1
        try:
            return self.chat(body) if self.path.endswith("/chat/completions") else self.complete(body)
        except (BrokenPipeError, ConnectionResetError):
            return None
        finally:
            self.vllm.script.open -= 1

    def token_ids(self, body: Json) -> list[int]:
        if "messages" in body:
            return self.vllm.tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)["input_ids"]
        ids = self.vllm.tokenizer.encode(body["prompt"] + self.vllm.script.renders, add_special_tokens=False)
        return [each + 1 for each in ids] if self.vllm.script.shifts_ids else ids

    def chat(self, body: Json) -> None:
        """Calls the first tool, or says what the last message does, as a parser of vLLM's tells of both."""
        last = body["messages"][-1]
        if last["content"] == "nonsense":
            return self.say({"error": {"message": "no such tool", "type": "BadRequestError"}}, 400)
        named = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "look_up", "arguments": ""}}
        parts = ({"index": 0, "function": {"arguments": each}} for each in ('{"who": ', '"Halio"}'))
        calls: list[Json] = [{"tool_calls": [each]} for each in (named, *parts)]
        said: list[Json] = [{"content": "It says: "}, {"content": last["content"], "reasoning": "hm"}]
        deltas = [{"role": "assistant", "content": ""}, *(said if last["role"] == "tool" else calls), {}]
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        for count, delta in enumerate(deltas):
            is_last = count + 1 == len(deltas)
            finish = ("stop" if last["role"] == "tool" else "tool_calls") if is_last else None
            usage = {"prompt_tokens": 77, "completion_tokens": count}
            for choice in range(body["n"]):
                piece = {"index": choice, "delta": delta, "finish_reason": finish}
                self.wfile.write(f"data: {json.dumps({'choices': [piece], 'usage': usage})}\n\n".encode())
            if count + 1 == self.vllm.script.breaks_at:
                return None
        self.wfile.write(b"data: [DONE]\n\n")
        return None

    def complete(self, body: Json) -> None:
        if "(" in body.get("structured_outputs", {}).get("regex", ""):
            self.say({"error": {"message": "no such expression", "type": "BadRequestError"}}, 400)
            return
        ids, cache = body["prompt"], self.vllm.fetched(body)
        loaded = 0 if cache is None else len(ids) - 1
        cache = DynamicCache() if cache is None else cache
        if body.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.vllm.script.gate.wait(60)
        runs = [self.pieces(body, ids[loaded:], copy.deepcopy(cache), choice) for choice in range(body["n"])]
        pieces: list[Json] = []
        for count, told in enumerate(zip_longest(*runs), 1):
            for piece in filter(None, told):
                pieces.append(piece)
                if body.get("stream"):
                    self.wfile.write(f"data: {json.dumps({'choices': [piece]})}\n\n".encode())
                    self.wfile.flush()
            if body.get("stream") and count == self.vllm.script.breaks_at:
                return
        if body.get("stream"):
            self.wfile.write(b"data: [DONE]\n\n")
            return
        whole = {**pieces[-1], "token_ids": [each["token_ids"][0] for each in pieces]}
        said = {} if self.vllm.script.kvweave is None else {"kv_transfer_params": {"kvweave": {"loaded": loaded}}}
        self.say({"choices": [whole], **(said if "kv_transfer_params" in body else {})})

    def pieces(self, body: Json, begun: list[int], cache: DynamicCache, choice: int) -> Iterator[Json]:
        """An answer: the likeliest tokens, behind one that is as unlikely as the answer's number says; or what it is to
        choose from.
        """
        forced = [*self.vllm.tokenizer.encode((body.get("structured_outputs") or {}).get("choice", [""])[-1])]
        forced += body["stop_token_ids"][:1] if forced else []
        for count in range(1, body["max_tokens"] + 1):
            logits = self.vllm.logits(begun, cache)
            token = forced[count - 1] if forced else int(logits.topk(1 + choice).indices[-1 if count == 1 else 0])
            is_stop = token in body["stop_token_ids"]
            finish = "stop" if is_stop else "length" if count == body["max_tokens"] else None
            yield {**self.piece(body, token, logits, finish), "index": choice}
            if finish:
                return
            begun = [token]

    def piece(self, body: Json, token: int, logits: torch.Tensor, finish: str | None) -> Json:
        found: Json = {"index": 0, "text": "", "token_ids": [token], "finish_reason": finish}
        if body.get("logprobs") is not None:
            scores = logits.log_softmax(0)
            best = {*scores.topk(max(1, body["logprobs"])).indices.tolist(), token}
            top = {f"token_id:{each}": float(scores[each]) for each in best}
            found["logprobs"] = {"token_logprobs": [float(scores[token])], "top_logprobs": [top]}
        return found


@contextmanager
def scripted_vllm(script: VllmScript, port: int = 0) -> Iterator[str]:
    """Its address."""
    script.gate.set()
    server = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (VllmHandler,), {"vllm": ScriptedVllm(script)}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        script.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
