"""The files that an upload, a question, and a stored blob on its way into a prompt pass through, in the order in which
they first do something: `make walks`.

Only first calls count: what a loop comes back to is one step. A room is a folder, or a file that lies beside folders;
a return is a step into a room that was left before. A blob's walk is what its opening and its loading call.
"""

import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

from tests.architecture import PRODUCT, ROOT, load, within
from tests.import_cycles import rooms
from tests.service.serving import in_process, put_in, settings_in

LOADING = ("service/documents/chunk_caches.py", "blend/fuse/record_loader.py")  # what opens blobs, and what loads them


class Walk:
    """Files of the product, one after another, as functions of theirs are called for the first time."""

    def __init__(self) -> None:
        product = [source for source in load(ROOT) if within(source.module, PRODUCT)]
        self._rooms = {Path(source.path): room for source, room in rooms(product).items()}
        self._seen: set[CodeType] = set()
        self._below: frozenset[Path] = frozenset()
        self.steps: list[Path] = []

    def begin(self, *, below: tuple[str, ...] = ()) -> None:
        """Steps count from now on; those alone that these files take, or call, if any are named."""
        self._seen, self.steps, self._below = set(), [], frozenset(map(Path, below))

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """A profile function, for all threads that begin after it was set."""
        code = frame.f_code
        if event != "call" or code in self._seen or code.co_name.startswith("<"):
            return
        self._seen.add(code)
        path = _own(frame)
        if path and (not self._below or any(_own(each) in self._below for each in _callers(frame))):
            self.steps.append(path)

    def show(self, name: str) -> None:
        there = [self._rooms[step] for step in self.steps]
        stays = [each for at, each in enumerate(there) if not at or there[at - 1] != each]
        returns = sum(each in stays[:at] for at, each in enumerate(stays))
        print(f"{name}: {len(set(self.steps))} files in {len(set(stays))} rooms, {returns} returns")
        for room in dict.fromkeys(stays):
            files = dict.fromkeys(step.name for step in self.steps if self._rooms[step] == room)
            print(f"  {room}: {', '.join(files)}")


def _own(frame: FrameType) -> Path | None:
    """The file of the product that runs here, if one does."""
    path = Path(frame.f_code.co_filename)
    own = path.relative_to(ROOT) if path.is_relative_to(ROOT) else None
    return own if own and own.parts[0] in PRODUCT else None


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields the frame, and those that called it."""
    while frame:
        yield frame
        frame = frame.f_back


def main() -> None:
    walk = Walk()
    threading.setprofile(walk.note)
    sys.setprofile(walk.note)
    with (
        tempfile.TemporaryDirectory() as folder,
        in_process(settings_in(Path(folder), device="cpu")) as inside,
        inside.client() as client,
    ):
        put_in(client, [{"id": "first", "text": "Nobody lives in B4."}])
        walk.begin()
        put_in(client, [{"id": "second", "title": "Halio", "text": "Halio lives in B5. Halio keeps a heron."}])
        walk.show("upload")
        walk.begin()
        question = {"question": "Where does Halio live?", "sampling": {"max_tokens": 8}}
        client.post("/v1/query", json=question).raise_for_status()
        walk.show("question")
        walk.begin(below=LOADING)
        client.post("/v1/query", json={**question, "blend": {"policy": "reuse"}}).raise_for_status()
        walk.show("blob")
    sys.setprofile(None)
    threading.setprofile(None)


if __name__ == "__main__":
    main()
