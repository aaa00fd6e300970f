"""A vector store that kvweave follows: what is written to the store is written to a sink too. Embeds nothing itself."""

import logging
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self, cast

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from kvweave_client import KVWeaveError, RequestError
from langchain_kvweave.indexing import KVWeaveSink

log = logging.getLogger(__name__)

ADD_AGAIN: Final = "The vector store has the documents: add them again, so that kvweave has them too."
DELETE_AGAIN: Final = "The vector store has deleted them: delete them again, so that they leave kvweave too."

Metadatas = list[dict[str, object]]
Options = dict[str, Any]  # of the store's own methods


def mirrored(store: VectorStore, sink: KVWeaveSink, *, strict: bool = True) -> "MirroredStore":
    """The store, with a sink that gets what the store gets. See `MirroredStore` for `strict`."""
    return MirroredStore(store, sink, strict=strict)


class MirroredStore(VectorStore):
    """A vector store that stays the index, and kvweave beside it with the same ids.

    Each write goes to the store first, and to kvweave when the store has done it; reads are the store's alone. So the
    store is never behind. Where kvweave misses an addition the error says so, and the same write again repairs it; with
    `strict=False` it is logged instead, and these documents are answered from without reuse. A deletion that kvweave
    misses is an error in any case: what was deleted must not live on unseen.
    """

    def __init__(self, store: VectorStore, sink: KVWeaveSink, *, strict: bool = True) -> None:
        self.store = store
        self.sink = sink
        self.strict = strict

    def add_texts(self, texts: Iterable[str], metadatas: Metadatas | None = None, **kwargs: object) -> list[str]:
        """Adds texts to the store and to kvweave, under these `ids` where they are given."""
        texts, options = list(texts), _options(kwargs)
        added = self.store.add_texts(texts, metadatas, **options)
        with self._following(len(texts)):
            self.sink.upsert(_identified(_documents(texts, metadatas), added, ids=options.get("ids")))
        return added

    async def aadd_texts(self, texts: Iterable[str], metadatas: Metadatas | None = None, **kwargs: object) -> list[str]:
        """The asynchronous `add_texts`."""
        texts, options = list(texts), _options(kwargs)
        added = await self.store.aadd_texts(texts, metadatas, **options)
        with self._following(len(texts)):
            await self.sink.aupsert(_identified(_documents(texts, metadatas), added, ids=options.get("ids")))
        return added

    def add_documents(self, documents: list[Document], **kwargs: object) -> list[str]:
        """Adds documents to the store and to kvweave."""
        added = self.store.add_documents(documents, **kwargs)
        with self._following(len(documents)):
            self.sink.upsert(_identified(documents, added, ids=kwargs.get("ids")))
        return added

    async def aadd_documents(self, documents: list[Document], **kwargs: object) -> list[str]:
        """Adds documents to the store and to kvweave."""
        added = await self.store.aadd_documents(documents, **kwargs)
        with self._following(len(documents)):
            await self.sink.aupsert(_identified(documents, added, ids=kwargs.get("ids")))
        return added

    def delete(self, ids: list[str] | None = None, **kwargs: object) -> bool | None:
        """Deletes documents from the store and from kvweave."""
        named = _named(ids)
        deleted = self.store.delete(named, **kwargs)
        if deleted is not False:
            with _telling(DELETE_AGAIN):
                self.sink.delete(named)
        return deleted

    async def adelete(self, ids: list[str] | None = None, **kwargs: object) -> bool | None:
        """Deletes documents from the store and from kvweave."""
        named = _named(ids)
        deleted = await self.store.adelete(named, **kwargs)
        if deleted is not False:
            with _telling(DELETE_AGAIN):
                await self.sink.adelete(named)
        return deleted

    def similarity_search(self, query: str, k: int = 4, **kwargs: object) -> list[Document]:
        """Searches the store."""
        return self.store.similarity_search(query, k, **kwargs)

    @property
    def embeddings(self) -> Embeddings | None:
        """The store's embeddings."""
        return self.store.embeddings

    def as_retriever(self, **kwargs: object) -> VectorStoreRetriever:
        """A retriever of the store; what is added by it goes to kvweave, too."""
        retriever = self.store.as_retriever(**kwargs)
        is_plain = type(retriever) is VectorStoreRetriever and retriever.vectorstore is self.store
        return retriever.model_copy(update={"vectorstore": self}) if is_plain else retriever

    @classmethod
    def from_texts(
        cls, texts: list[str], embedding: Embeddings, metadatas: Metadatas | None = None, **kwargs: object
    ) -> Self:
        """Refuses: a mirror needs a store. Make one, and add the texts to `mirrored(store, sink)`."""
        raise NotImplementedError("make a store, wrap it by mirrored(store, sink), and add the texts to that")

    def __getattribute__(self, name: str) -> object:
        """What is not written here is the store's: kvweave has no part in it."""
        if name.startswith("_") or name in _OWN:
            return super().__getattribute__(name)
        return getattr(self.store, name)

    @contextmanager
    def _following(self, count: int) -> Generator[None]:
        """Adds to kvweave what the store has added."""
        try:
            with _telling(ADD_AGAIN):
                yield
        except KVWeaveError as error:
            if self.strict:
                raise
            log.warning("kvweave missed %d documents of %r: %s", count, self.sink.collection, error)


_OWN: Final = {"store", "sink", "strict", *vars(MirroredStore)}


def _options(given: dict[str, object]) -> Options:
    """The options for the store; ids only where there are some, as not every store takes None."""
    return {name: value for name, value in given.items() if name != "ids" or value is not None}


def _documents(texts: Sequence[str], metadatas: Metadatas | None) -> list[Document]:
    return [
        Document(text, metadata=metadata)
        for text, metadata in zip(texts, metadatas or ({} for _ in texts), strict=True)
    ]


def _identified(documents: Sequence[Document], added: object, *, ids: object) -> list[Document]:
    """The documents with the ids that the store uses: those that it answered, else those that it was given."""
    for names in (added, ids, [document.id for document in documents]):
        named = cast(list[object], names) if isinstance(names, list) else []
        if len(named) == len(documents) and None not in named:
            return [
                Document(document.page_content, id=str(name), metadata=document.metadata)
                for document, name in zip(documents, named, strict=True)
            ]
    raise RequestError("the vector store does not say under which ids it keeps the documents: give them ids")


def _named(ids: list[str] | None) -> list[str]:
    if ids is None:
        raise ValueError("name the ids to delete: what else a store may delete by, kvweave cannot follow")
    return ids


@contextmanager
def _telling(remedy: str) -> Generator[None]:
    try:
        yield
    except KVWeaveError as error:
        error.add_note(remedy)
        raise
