"""An environment that holds the clients' wheels and what they require, and nothing else. Needs no network.

What is required is linked from the environment that the tests run in.
"""

import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = tuple(sorted(file.parent for file in ROOT.glob("clients/*/pyproject.toml")))


@dataclass(frozen=True, slots=True)
class Wheel:
    """A distribution as users get it."""

    path: Path
    names: tuple[str, ...]
    metadata: str

    @property
    def requires(self) -> list[Requirement]:
        """Without its extras."""
        found = [Requirement(line) for line in re.findall(r"^Requires-Dist: (.*)$", self.metadata, re.MULTILINE)]
        return [each for each in found if not each.marker or each.marker.evaluate({"extra": ""})]


def build(folder: Path, *, into: Path) -> Wheel:
    """From a copy of the tree, by what stands in its pyproject.toml: what an older build left is not taken along."""
    copied = into / "tree" / folder.name
    shutil.copytree(folder, copied, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "-w", str(into), str(copied)], check=True, capture_output=True, timeout=120)
    [path] = into.glob(f"{folder.name.replace('-', '_')}-*.whl")
    with ZipFile(path) as opened:
        names = tuple(opened.namelist())
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        return Wheel(path, names, opened.read(metadata).decode())


def environment(folder: Path, *, wheels: list[Wheel]) -> Path:
    """The python of a new environment with these wheels."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    ours: set[str] = {canonicalize_name(wheel.path.name.partition("-")[0]) for wheel in wheels}
    for each in _closure([requirement for wheel in wheels for requirement in wheel.requires], without=ours):
        _link(each, packages)
    for wheel in wheels:
        with ZipFile(wheel.path) as opened:
            opened.extractall(packages)
    return python


def _closure(requirements: list[Requirement], *, without: set[str]) -> Iterator[Distribution]:
    """Every distribution that is installed here and required, directly or by another."""
    seen, waiting = set(without), list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # for another system
        yield found
        for line in found.requires or []:
            inner = Requirement(line)
            extras = ["", *requirement.extras]
            if not inner.marker or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(inner)


def _link(found: Distribution, packages: Path) -> None:
    """Its files one by one, because several distributions share a namespace."""
    for file in found.files or []:
        source = Path(str(found.locate_file(file)))
        if ".." in file.parts or "__pycache__" in file.parts or not source.is_file():
            continue
        target = packages / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.symlink_to(source)
