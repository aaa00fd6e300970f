"""The files that an upload and a question pass through, in the order in which they first do something.

Only first calls count: what a loop comes back to is one step. A room is a folder, or a file that lies beside folders;
a return is a step into a room that was left before.
"""

import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType

from tests.architecture import PRODUCT, ROOT, load, within
from tests.import_cycles import rooms
from tests.service.serving import in_process, put_in, settings_in


class Walk:
    """Files of the product, one after another, as functions of theirs are called for the first time."""

    def __init__(self) -> None:
        product = [source for source in load(ROOT) if within(source.module, PRODUCT)]
        self._rooms = {Path(source.path): room for source, room in rooms(product).items()}
        self._seen: set[CodeType] = set()
        self.steps: list[Path] = []

    def begin(self) -> None:
        self._seen, self.steps = set(), []

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """A profile function, for all threads that begin after it was set."""
        code = frame.f_code
        if event != "call" or code in self._seen or code.co_name.startswith("<"):
            return
        self._seen.add(code)
        path = Path(code.co_filename)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PRODUCT:
            self.steps.append(path.relative_to(ROOT))

    def show(self, name: str) -> None:
        there = [self._rooms[step] for step in self.steps]
        stays = [each for at, each in enumerate(there) if not at or there[at - 1] != each]
        returns = sum(each in stays[:at] for at, each in enumerate(stays))
        print(f"{name}: {len(set(self.steps))} files in {len(set(stays))} rooms, {returns} returns")
        for room in dict.fromkeys(stays):
            files = dict.fromkeys(step.name for step in self.steps if self._rooms[step] == room)
            print(f"  {room}: {', '.join(files)}")


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
    sys.setprofile(None)
    threading.setprofile(None)


if __name__ == "__main__":
    main()
