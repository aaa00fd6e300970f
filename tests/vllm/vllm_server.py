"""A vLLM server as a process, in an environment of its own, with the connector of this tree."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import httpx

from service.builtin import CHECKPOINT
from tests.servers.free_port import free_port

PYTHON = "VLLM_PYTHON"  # the interpreter of that environment
START_S = 900.0
STOP_S = 30.0
MODEL = "tiny"


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """How vLLM is started. `extra` goes to its command line."""

    kvweave: str
    key: str = ""
    block_size: int = 32
    dtype: str = "float32"
    timeout_s: float = 20.0
    port: int = 0  # 0: any that is free
    extra: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


class VllmServer:
    """vLLM with the built-in model. Entering it waits until it answers."""

    def __init__(self, folder: Path, options: VllmOptions) -> None:
        self._options = options
        self._port = options.port or free_port()
        self.log = folder / f"vllm-{self._port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it on its port, again after a stop."""
        assert self._process is None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment(),
                start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + START_S
        while not self._answers():
            assert self._process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < end, self.log.read_text()[-4000:]
            time.sleep(0.3)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it and its workers."""
        process, self._process = self._process, None
        if process is None:
            return
        _signal(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        _signal(process.pid, signal.SIGKILL)
        process.wait()

    def client(self) -> httpx.Client:
        """A client of its API."""
        return httpx.Client(base_url=self.base_url, timeout=180, trust_env=False)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.base_url}/health", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def _command(self) -> list[str]:
        options = self._options
        transfer = {
            "kv_connector": "KvweaveConnector",
            "kv_connector_module_path": "vllm_kvweave.connector",
            "kv_role": "kv_consumer",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"base_url": options.kvweave, "timeout_s": options.timeout_s},
        }
        return [
            *(os.environ[PYTHON], "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(CHECKPOINT), "--served-model-name", MODEL),
            *("--host", "127.0.0.1", "--port", str(self._port)),
            *("--dtype", options.dtype, "--block-size", str(options.block_size), "--max-num-seqs", "16"),
            *("--enforce-eager", "--enable-prompt-tokens-details"),
            *("--kv-transfer-config", json.dumps(transfer), *options.extra),
        ]

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("KVWEAVE_", "PYTHON"))}
        quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        return {**inherited, **quiet, **cpu, "KVWEAVE_API_KEY": self._options.key, **self._options.environment}

    def __enter__(self) -> VllmServer:
        with ExitStack() as undo:
            undo.callback(self.stop)
            self.start()
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _signal(pid: int, number: signal.Signals) -> None:
    """A signal to a process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(pid, number)
