"""A service that is killed often: its clock jumps, and it tidies up whenever it has nothing else to do."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from tests.service.checkpoints import IS_HYBRID, small
from tests.service.forks import JUMPING
from tests.service.serving import WAIT_S, Json, Service, kvweave_ended

KV_BYTES = 32 << 20  # a sixteenth of it has room for 170 tokens of prompts


class Killed(Service):
    """Whatever it writes but its log stands in one folder."""

    def __init__(self, folder: Path, *, log: Path) -> None:
        (folder / "spool").mkdir()
        more = {"TMPDIR": str(folder / "spool"), JUMPING: "1"}
        super().__init__(
            folder,
            environment=more,
            dtype="float32",
            device="cpu",
            **({"model": small()} if IS_HYBRID else {}),
            codec="lossless",
            chunk_tokens=16,
            kv_bytes=KV_BYTES,
            stop_s=WAIT_S,
        )
        self.folder, self.log = folder, log
        self.store = f"lmdb://{folder}/store"
        self.kills = 0

    def kill(self) -> None:
        """Raises where it ended by itself before."""
        assert self.process is not None
        process = self.process
        super().kill()
        assert process.returncode == -9, f"it ended by itself with {process.returncode}\n{self.text()}"
        self.kills += 1

    def has_nameless_files(self) -> bool:
        """Whether it has a file in its data folder that goes with the process, such as rows of a prompt."""
        found: list[str] = []
        for each in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed a moment ago
                found.append(str(each.readlink()))
        return any(each.startswith(f"{self.data}/") and each.endswith(" (deleted)") for each in found)

    def verify(self) -> Json:
        """What the command `kvweave verify` says."""
        return json.loads(kvweave_ended("verify", "--json", status=0, **self._environment()).stdout)
