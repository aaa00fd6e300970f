"""A service that starts in no time, for tests that kill many."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import cast

from tests.nursery import Nursery
from tests.service.serving import WAIT_S, Json, Service


class Forked(Service):
    """Whatever it writes but its log stands in one folder."""

    def __init__(self, folder: Path, nursery: Nursery, *, log: Path) -> None:
        (folder / "spool").mkdir()
        more = {"TMPDIR": str(folder / "spool")}
        super().__init__(folder, environment=more, dtype="float32", device="cpu", codec="lossless", chunk_tokens=16)
        self.folder, self.log, self._nursery = folder, log, nursery
        self.store = f"lmdb://{folder}/store"
        self.kills = 0

    def start(self, *, ready: bool = True) -> None:
        assert self.process is None, "it runs"
        process = self._nursery.begin("serve", environment=self._environment(), output=self.log)
        self.process = cast("subprocess.Popen[bytes]", process)
        if ready:
            self.wait_ready()

    def kill(self) -> None:
        """Raises where it ended by itself before."""
        assert self.process is not None
        process = self.process
        super().kill()
        assert process.returncode == -9, f"it ended by itself with {process.returncode}\n{self.text()}"
        self.kills += 1

    def verify(self) -> Json:
        """What the command `kvweave verify` says."""
        output = self.log.with_name("verified.json")
        output.unlink(missing_ok=True)
        process = self._nursery.begin("verify", "--json", environment=self._environment(), output=output)
        assert process.wait(WAIT_S) == 0
        return json.loads(output.read_text())
