"""The ids by which OpenAI's clients name what is here: collections and documents. They are spelt out of its own name.

Clients put ids into paths as they are, so all but letters, digits, `-`, `.` and `_` is written as `~` and its bytes.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote


@dataclass(frozen=True, slots=True)
class ObjectIds:
    """The ids of one kind of objects."""

    prefix: str

    def id_of(self, name: str) -> str:
        return self.prefix + quote(name, safe="").replace("~", "%7E").replace("%", "~")

    def name_of(self, object_id: str) -> str | None:
        """The name of what has this id, which need not be there; None for an id that nothing of this kind can have.

        A name that somebody wrote without `~` stands for itself.
        """
        spelt = object_id.removeprefix(self.prefix)
        name = unquote(spelt.replace("%", "%25").replace("~", "%"))
        return None if spelt == object_id or not name or "\0" in name else name


VECTOR_STORES: Final = ObjectIds("vs_")  # each of which is a collection
BATCHES: Final = ObjectIds("vsfb_")  # of files, each of which is a job
FILES: Final = ObjectIds("file-")  # each of which is a document
