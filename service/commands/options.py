"""Options that several commands take, what becomes of them, and what shells complete their values to."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from service.settings import Settings


def settings_with(model: str) -> "Settings":
    """The settings in force, with this model if one is named."""
    from service.settings import load_settings

    return load_settings(**({"model": model} if model else {}))


def listed(text: str) -> list[str]:
    """What stands between commas."""
    return [each.strip() for each in text.split(",") if each.strip()]


def whole_numbers(option: str, text: str) -> list[int]:
    """The numbers between commas. Raises Invalid for what is none."""
    from service.errors import Invalid

    numbers: list[int] = []
    for each in listed(text):
        try:
            numbers.append(int(each))
        except ValueError:
            raise Invalid(f"{option}: whole numbers with commas are wanted, got {each!r}") from None
    return numbers


def check_folders(*files: Path | None) -> None:
    """Raises Invalid for a file whose folder is not there, before anything is measured for a long time."""
    from service.errors import Invalid

    for file in files:
        if file and not file.absolute().parent.is_dir():
            raise Invalid(f"{file} cannot be written: there is no folder {file.parent}: make it, or name another")


def a_policy() -> list[str]:
    """The names of all policies, loaded only where somebody presses the tabulator."""
    from blend.fuse.policy import POLICIES

    return list(POLICIES)


def a_codec() -> list[str]:
    """The names of all codecs that are one for keys, values and layers."""
    from store.codec.spec import NAMES

    return list(NAMES)


def a_role() -> list[str]:
    return ["fetch", "read", "write", "admin"]


def policies(incomplete: str) -> list[str]:
    """The list as far as it is typed, with each policy that it does not hold yet."""
    return _longer(incomplete, a_policy())


def codecs(incomplete: str) -> list[str]:
    """The list as far as it is typed, with each codec that it does not hold yet."""
    return _longer(incomplete, a_codec())


def _longer(typed: str, names: list[str]) -> list[str]:
    before, comma, _ = typed.rpartition(",")
    return [f"{before}{comma}{name}" for name in names if name not in before.split(",")]


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
ModelName = Annotated[
    str,
    typer.Option("--model", metavar="NAME", help="Hub name or folder; KVWEAVE_MODEL by default.", show_default=False),
]
StoreUrl = Annotated[
    str,
    typer.Option("--store", metavar="URL", help="The store; KVWEAVE_STORE by default.", show_default=False),
]
