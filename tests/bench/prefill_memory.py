"""Measures the memory of a fuse: the peak of the process above where it stood before. A random model, no store.

`python -m tests.bench.prefill_memory` prints one JSON object: cases of Qwen2.5-0.5B's shape, each in a process of its
own, so that none finds pages that another one left. `peak_bytes` is of resident memory, or of an accelerator's, with
the context; `kv_bytes` is what the prompt keeps in it; `limit_bytes` is 1.3 times that and 256 MiB. Linux only: it
reads /proc.
"""

import argparse
import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from blend.fuse.fuse import BlendOrder
from blend.fuse.record_loader import Readers
from tests.bench.model import QUESTION, Shape, adopted, best_device, captured, fused, random_model

POLICIES = ("hybrid", "full")
LENGTHS = (4096, 16384)
OVERHEAD = 1.3
SLACK_BYTES = 256 << 20

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")


def limit_bytes(kv_bytes: int, slack_bytes: int = SLACK_BYTES) -> int:
    """What a fuse may take at most."""
    return int(OVERHEAD * kv_bytes) + slack_bytes


def peak_bytes(work: Callable[[], object]) -> int:
    """How far the process's memory rises while the work runs. Freed pages go back to the system first."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - start
    ctypes.CDLL(None).malloc_trim(0)
    RESET.write_text("5")
    before = _status_bytes("VmRSS")
    work()
    return _status_bytes("VmHWM") - before


def _status_bytes(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def measure(options: argparse.Namespace) -> dict[str, object]:
    """One fuse in this process. Nothing of that size ran before: the capture has passes of 512 rows."""
    model = adopted(random_model(Shape(layers=options.layers), dtype=options.dtype, device=best_device()))
    prompt = captured(model).prompt(options.tokens, question=options.question)
    seconds: list[float] = []
    with Readers(2) as readers:

        def work() -> None:
            seconds.append(fused(model, prompt, order=BlendOrder(options.policy, 0.15), readers=readers)[1])

        peak = peak_bytes(work)
    kv = len(prompt.ids) * model.decoder.token_bytes
    limit = limit_bytes(kv)
    return {
        "policy": options.policy,
        "prompt_tokens": len(prompt.ids),
        "dtype": options.dtype,
        "seconds": round(seconds[0], 2),
        "peak_bytes": peak,
        "kv_bytes": kv,
        "limit_bytes": limit,
        "holds": peak <= limit,
    }


def _alone(policy: str, *, tokens: int, options: argparse.Namespace) -> object:
    command = [sys.executable, "-m", "tests.bench.prefill_memory", "--policy", policy, "--tokens", str(tokens)]
    command += ["--dtype", options.dtype, "--layers", str(options.layers), "--question", str(options.question)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--layers", type=int, default=24, help="fewer make a quick try (default 24)")
    parser.add_argument("--tokens", type=int, help=f"of all chunks (default {' and '.join(map(str, LENGTHS))})")
    parser.add_argument("--question", type=int, default=QUESTION, help="tokens behind the chunks (default 32)")
    parser.add_argument("--policy", help="with --tokens: this case alone, in this process; several with commas")
    options = parser.parse_args()
    if options.policy and options.tokens and "," not in options.policy:
        print(json.dumps(measure(options), indent=1))
        return
    lengths = [options.tokens] if options.tokens else LENGTHS
    policies = options.policy.split(",") if options.policy else POLICIES
    rows = [_alone(policy, tokens=tokens, options=options) for tokens in lengths for policy in policies]
    print(json.dumps({"layers": options.layers, "cases": rows}, indent=1))


if __name__ == "__main__":
    main()
