"""The embedders of a process' libraries, of which the wanted one may come late. Loads none."""

from dataclasses import dataclass

from retriever.embedders.embedding import Embedder


@dataclass(slots=True)
class Embedders:
    """The embedder whose vectors are wanted, and `others`, whose vectors serve until all of those are made.

    `lacks` says why the wanted one is not there, which passes where it `is_awaited`; else it says what to do.
    """

    wanted: Embedder | None = None
    others: tuple[Embedder, ...] = ()
    lacks: str = "name one in the settings"
    is_awaited: bool = False

    @property
    def known(self) -> list[Embedder]:
        """All that are there, the wanted one first."""
        return [*([self.wanted] if self.wanted else []), *self.others]
