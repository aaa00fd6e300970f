"""What integrations note of a passage in the metadata of their frameworks. Sends nothing.

Names of metadata that begin with `kvweave_` are of these packages; all others are the user's.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final

from kvweave_client import operations
from kvweave_client.answers import ChunkState, Source
from kvweave_client.options import Json
from kvweave_client.plans import Plan, entries

PREFIX: Final = "kvweave_"
CHUNK_ID: Final = "kvweave_chunk_id"
DOCUMENT_ID: Final = "kvweave_document_id"
TITLE: Final = "kvweave_title"
PAGE: Final = "kvweave_page"
SCORE: Final = "kvweave_score"
CACHE: Final = "kvweave_cache"
DIGEST: Final = "kvweave_digest"  # of the text that the chunk id stands for: a passage may be changed on its way

LONGEST_ID, LONGEST_TITLE = 1024, 1000  # characters that the service takes
LOOKED_UP: Final = 1000  # chunks of one request


def own_metadata(metadata: Mapping[str, object]) -> Json:
    """The metadata that the user put there."""
    return {name: value for name, value in metadata.items() if not name.startswith(PREFIX)}


def digest_of(text: str) -> str:
    """The digest that tells whether a passage still has the text that it came with."""
    return sha256(text.strip().encode("utf-8", "surrogatepass")).hexdigest()[:32]


def notes_of(hit: Source) -> Json:
    """What is noted of a passage that a search found, as far as it is known."""
    told = {
        CHUNK_ID: hit.chunk_id,
        DOCUMENT_ID: hit.document_id,
        TITLE: hit.title,
        PAGE: hit.page,
        SCORE: hit.score,
        DIGEST: digest_of(hit.text),
    }
    return {name: value for name, value in told.items() if value is not None}


def chunk_id_of(metadata: Mapping[str, object], text: str) -> str:
    """The chunk's id. Empty where none is noted, or the text was changed since: an id would bring the old one."""
    return str(metadata.get(CHUNK_ID) or "") if metadata.get(DIGEST) == digest_of(text) else ""


def states_of(hits: Sequence[Source]) -> Plan[dict[str, ChunkState]]:
    """What is stored of the hits' chunks, by their ids."""
    ids = [*dict.fromkeys(hit.chunk_id for hit in hits)]
    states: dict[str, ChunkState] = {}
    for start in range(0, len(ids), LOOKED_UP):
        some = yield from entries(operations.lookup(chunk_ids=ids[start : start + LOOKED_UP]))
        states |= {each.chunk_id: each for each in some}
    return states
