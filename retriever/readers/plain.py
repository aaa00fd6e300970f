"""Plain text: the text is the file, verbatim."""

from pathlib import PurePath

from retriever.documents import Draft
from retriever.readers.decode import decode
from retriever.readers.reading import Reading, require_text


def read_plain(name: str, content: bytes) -> Reading:
    """One draft, titled as the file."""
    return Reading((Draft(require_text(decode(content)), title=PurePath(name).stem),))
