"""All benchmarks as one JSON object: `python -m tests.bench [--trace FILE]`, the trace for eviction."""

import argparse
import json
import subprocess
import sys


def run(name: str, *arguments: str) -> object:
    """The JSON that one benchmark prints, from a process of its own."""
    command = [sys.executable, "-m", f"tests.bench.{name}", *arguments]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", help="block trace in Mooncake's form")
    trace = parser.parse_args().trace
    results = {"codec": run("codec")}
    results["eviction"] = run("eviction", "--trace", trace) if trace else run("eviction")
    results["recognize"] = run("recognize")
    results["retrieval"] = run("retrieval")
    results["blend"] = run("blend")
    results["prefill_memory"] = run("prefill_memory")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
