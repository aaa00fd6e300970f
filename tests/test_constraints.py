"""Whether constraints.txt pins all that an install of the product brings, and as it is tested here."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
EXTRAS = ("", "readers", "traces", "ray", "dev")  # `quantized` is for devices that are not here
UNPINNED = {"kvweave", "pip", "setuptools", "wheel"}


def required() -> dict[str, str]:
    """The installed versions of all that the product and its extras require, and what these require."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    left = [("kvweave", extra) for extra in EXTRAS]
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


def test_all_that_an_install_brings_is_pinned_as_it_is_tested() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    brought = {name: version.partition("+")[0] for name, version in required().items()}
    assert len(brought) > 40
    assert {f"{name}=={version}" for name, version in brought.items()} - {
        f"{canonicalize_name(name)}=={pin}" for name, pin in pins.items()
    } == set()
