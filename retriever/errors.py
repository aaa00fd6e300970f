"""The errors of documents and search. Each message names the value and the remedy."""


class RetrieverError(Exception):
    """The base of the errors of this package."""


class FilterError(RetrieverError, ValueError):
    """A filter on metadata that is not understood."""


class DocumentError(RetrieverError, ValueError):
    """A document that cannot be kept as it is."""


class CatalogError(RetrieverError, RuntimeError):
    """A catalog that is of a newer kvweave, damaged, or closed."""


class SearchError(RetrieverError, ValueError):
    """A search that asks for something that does not exist here."""


class EmbeddingError(RetrieverError, RuntimeError):
    """An embedder or a reranker that is unavailable, or a text it cannot take. `temporary`: a later try may succeed."""

    def __init__(self, message: str, *, temporary: bool = False) -> None:
        super().__init__(message)
        self.temporary = temporary
