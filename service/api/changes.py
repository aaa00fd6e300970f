"""The header Kvweave-Change: a sealed text of how far a catalog has come, and how long one waits to see as much.

A number counts the changes of a whole tenant, of which keys with a filter must not learn. So it is told as a text that
only the catalog can read, and that is another one each time.
"""

import secrets
import time
from hashlib import blake2b
from typing import Annotated, Final

import anyio
from fastapi import Header
from fastapi.concurrency import run_in_threadpool
from pydantic.json_schema import SkipJsonSchema

from retriever.catalog.catalog import Catalog
from retriever.types import CatalogState
from service.errors import Conflict, Unavailable

HEADER: Final = "Kvweave-Change"
WAIT_S: Final = 5.0  # how long a request waits for what it must see
_LOOK_S: Final = 0.05
_NUMBER: Final = 8  # bytes, as of the nonce and the seal

MustSee = Annotated[
    str | SkipJsonSchema[None],
    Header(
        alias=HEADER,
        pattern=f"^[0-9a-f]{{{2 * 3 * _NUMBER}}}$",
        description="What an answer to a change gave in the header of this name, or a job as `change`: this request "
        "sees that change, on whatever replica it comes to",
    ),
]


def change_token(state: CatalogState) -> str:
    """How far the catalog has come, for a client to keep and send along."""
    nonce, number = secrets.token_bytes(_NUMBER), state.changes.to_bytes(_NUMBER, "big")
    return (nonce + _masked(number, nonce, key=state.catalog) + _seal(number, nonce, key=state.catalog)).hex()


def changes_in(text: str, state: CatalogState) -> int:
    """The number of changes that a client was told. Raises Conflict for what this catalog never said."""
    given = bytes.fromhex(text)
    nonce, masked, seal = given[:_NUMBER], given[_NUMBER : 2 * _NUMBER], given[2 * _NUMBER :]
    number = _masked(masked, nonce, key=state.catalog)
    if not secrets.compare_digest(seal, _seal(number, nonce, key=state.catalog)):
        raise Conflict(
            f"{HEADER} {text!r} was not told by this tenant's catalog, or before it was moved: send what an answer of "
            "today gave, or leave it out"
        )
    return int.from_bytes(number, "big")


async def wait_until_seen(catalog: Catalog, text: str) -> None:
    """Returns when a view of the catalog has what the text says. Raises Unavailable where that takes too long."""
    until = time.monotonic() + WAIT_S
    while True:
        state = await run_in_threadpool(_state, catalog)
        if state.changes >= changes_in(text, state):
            return
        if time.monotonic() > until:
            raise Unavailable("the change that this request must see has not arrived here: ask again")
        await anyio.sleep(_LOOK_S)


def _state(catalog: Catalog) -> CatalogState:
    with catalog.view() as view:
        return view.state()


def _masked(number: bytes, nonce: bytes, *, key: str) -> bytes:
    mask = blake2b(nonce, digest_size=_NUMBER, key=key.encode(), person=b"mask").digest()
    return bytes(one ^ other for one, other in zip(number, mask, strict=False))


def _seal(number: bytes, nonce: bytes, *, key: str) -> bytes:
    return blake2b(nonce + number, digest_size=_NUMBER, key=key.encode(), person=b"seal").digest()
