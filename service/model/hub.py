"""Names of the model hub: whether the hub can be reached is known within seconds, and what was fetched is used without.

Left alone, the libraries try for a minute, and say so in lines of their own.
"""

import re
from functools import cache
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import httpx
from huggingface_hub import constants, snapshot_download  # pyright: ignore[reportUnknownVariableType]
from huggingface_hub.errors import LocalEntryNotFoundError

from service.settings import PREFIX, SettingsError

WAIT_S = 6.0  # for any answer of the hub, the look-up of its address included
_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)


def check_name(name: str, *, setting: str) -> bool:
    """Whether this is the folder of a checkpoint; else it may be a name of the hub. Asks nobody.

    Raises SettingsError for what can be neither: a folder without a checkpoint, or what is spelt unlike a name.
    """
    if (Path(name) / "config.json").is_file():
        return True
    if Path(name).exists():
        raise SettingsError(
            f"{_named(name, setting)} holds no config.json: name the folder of a checkpoint, or a name of the hub"
        )
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{_named(name, setting)} is no folder here, and no name of the hub such as org/model")
    return False


@cache
def hub_checkpoint(name: str, *, setting: str) -> str:
    """The name, or where the hub cannot be reached the folder of what was fetched before.

    Raises SettingsError where there is neither, and as `check_name`.
    """
    if check_name(name, setting=setting):
        return name
    reason = "it is switched off by HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else _unreached(name)
    if not reason:
        return name
    try:
        return snapshot_download(name, local_files_only=True)
    except LocalEntryNotFoundError:
        raise SettingsError(
            f"{_named(name, setting)} is no folder here and was not fetched before, and "
            f"{constants.ENDPOINT} cannot be reached ({reason}): name a folder, or connect this machine"
        ) from None


def _named(name: str, setting: str) -> str:
    return f"{setting} ({PREFIX}{setting.upper()}): {name!r}"


def _unreached(name: str) -> str:
    """Why the hub does not answer; empty where it does. Leaves a thread behind where the look-up hangs."""
    found: Queue[str] = Queue()
    Thread(target=lambda: found.put(_asked(name)), name="kvweave-hub", daemon=True).start()
    try:
        return found.get(timeout=WAIT_S)
    except Empty:
        return f"no answer in {WAIT_S:g} s"


def _asked(name: str) -> str:
    try:
        httpx.head(f"{constants.ENDPOINT}/{name}/resolve/main/config.json", timeout=WAIT_S)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        return str(error) or type(error).__name__
    return ""
