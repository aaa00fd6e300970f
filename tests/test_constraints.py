"""Whether constraints.txt pins all that an install brings, as it is tested here, and the image's locks have hashes."""

import re
import tomllib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
EXTRAS = ("", "readers", "traces", "ray", "dev")  # `quantized` is for devices that are not here
UNPINNED = {"kvweave", "pip", "setuptools", "wheel"}


def required(extras: Sequence[str] = EXTRAS) -> dict[str, str]:
    """The installed versions of all that the product and these extras require, and what these require."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    left = [("kvweave", extra) for extra in extras]
    while left:
        name, extra = left.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue  # of another platform's build
        found[name] = installed.version
        for each in map(Requirement, installed.requires or ()):
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                left += [(canonicalize_name(each.name), wanted) for wanted in ("", *each.extras)]
    return {name: version for name, version in found.items() if name not in UNPINNED}


def pins() -> dict[str, str]:
    """What constraints.txt says."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


def locked(name: str) -> dict[str, str]:
    """The versions in a lock, each of whose lines is a requirement or the hash of one."""
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / name).read_text(encoding="utf-8").strip()):
        lines = entry.split(" \\\n    ")
        told = re.fullmatch(r"([a-z0-9-]+)==([a-z0-9.]+)", lines[0])
        assert told, entry
        assert len(lines) > 1, entry
        assert [line for line in lines[1:] if not re.fullmatch("--hash=sha256:[0-9a-f]{64}", line)] == []
        found[told[1]] = told[2]
    return found


def test_all_that_an_install_brings_is_pinned_as_it_is_tested() -> None:
    brought = {name: version.partition("+")[0] for name, version in required().items()}
    assert len(brought) > 40
    assert brought.items() - pins().items() == set()


def test_the_image_installs_from_locks_with_hashes_what_is_pinned() -> None:
    torch, others = locked("torch.lock"), locked("requirements.lock")
    assert {name for name in torch if name in pins()} == {"torch"}
    built_with = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert others.keys() - pins().keys() == {Requirement(each).name for each in built_with}
    assert torch.keys() & others.keys() == set()
    held = torch | others
    assert {name: pins()[name] for name in held.keys() & pins().keys()}.items() <= held.items()
    assert required(("", "readers", "traces")).keys() - held.keys() == set()


def test_the_image_installs_nothing_but_by_hash() -> None:
    """Its own code aside, and torch where another index was named."""
    installs = re.findall(r"pip install ([^&;\n]+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    unhashed = [each for each in installs if not each.startswith("--require-hashes --no-deps -r ")]
    assert len(installs) == 4
    assert [each.split()[0] for each in unhashed] == ["--extra-index-url", "--no-deps"]
    assert "--no-build-isolation" in unhashed[1]
