"""PATHs that name what lies elsewhere: pages and sitemaps of the web, and folders in object storage."""

from collections.abc import Callable
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.documents.corpus_listing import RemoteFiles

OBJECTS = ("s3://", "gs://", "az://")
PAGES = ("http://", "https://")


def remote_paths(stack: ExitStack, *, allow_private: bool) -> "Callable[[str], RemoteFiles | None]":
    """What a PATH names elsewhere; nothing for a file, a folder or a pattern. What is fetched goes with the stack."""

    def remote(path: str) -> "RemoteFiles | None":
        if path.startswith(OBJECTS):
            from service.documents.corpus_objects import CorpusObjects
            from store.url import open_folder

            return CorpusObjects(open_folder(path))
        return _pages(stack, path, allow_private=allow_private) if path.startswith(PAGES) else None

    return remote


def _pages(stack: ExitStack, path: str, *, allow_private: bool) -> "RemoteFiles":
    from service.errors import Invalid

    try:
        from service.documents.web_pages import WebPages
    except ImportError as error:
        raise Invalid(f"{path}: pages need `pip install 'kvweave[readers]'` ({error})") from None
    from service.documents.web_client import WebClient

    client = WebClient(allow_private=allow_private)
    stack.callback(client.close)
    return WebPages(path, client, folder=stack.enter_context(TemporaryDirectory(prefix="kvweave-pages-")))
