"""Writes a dump of a database as this release makes it: `python -m tests.service.truth.postgres.golden.make NAME`. What
is there is never written again.

It holds keys, an operating point and a tenant's catalog, and `NAME.json` tells what stands in it.
"""

import json
import re
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from retriever.catalog.view import CatalogView
from retriever.documents import DocumentPart
from retriever.filter_condition import EVERYTHING, condition
from retriever.types import Collection, Limit, SourceFile
from retriever.upload_types import NewUpload
from service.access.principal import Role
from service.truth.control import BlendingSwitch, Quota
from service.truth.postgres.postgres_truth import PostgresTruth
from service.truth.truth import Truth
from tests.retriever.catalogs import document
from tests.servers.postgres import SECRET, postgres_server

FOLDER = Path(__file__).parent
TENANT = "acme"
LETTERS = (
    document("a", "Halio keeps a badger", DocumentPart("a garden", metadata={"page": 2}), title="t", metadata={"n": 1}),
    document("b", "Belio keeps a pony \0 \x01", metadata={"n": 2.5, "team": ["x", None, True]}),
    document("c", "Corina keeps a heron"),
)
_NEWER = re.compile(r"^(SET transaction_timeout|\\(un)?restrict).*\n", re.MULTILINE)  # than the oldest server


def fill(truth: Truth, point: Path) -> None:
    point.write_text('policy = "ask"\nratio = 0.3\ncodec = "q4"\n')
    truth.keep_point(point)
    with closing(truth.control()) as control:
        entry, _ = control.create_key(TENANT, Role.READ, bound={"team": "x"}, per_minute=7, note="für Anna")
        control.create_key(TENANT, Role.ADMIN)
        control.revoke_key(entry.id)
        control.set_quota(TENANT, Quota(None, 2**40))
        control.set_switch(BlendingSwitch(enabled=True, share=0.5))
        control.remember_fingerprint("f" * 8, {"dtype": "float32"})
    catalog = truth.catalog(TENANT)
    with catalog.change() as change:
        change.put_collection(Collection("letters", {"system": "Answer in one word."}))
        change.add_embedder("e", dim=2)
        change.put(LETTERS, collection="letters")
        vectors = np.array([[number, 1] for number in range(len(LETTERS))], np.float32)
        change.put_vectors([each.parts[0].id for each in LETTERS], vectors, embedder="e")
    with catalog.change() as change:
        change.patch("b", metadata={"by": "me"})
        change.delete(["c"])
        change.keep_prefix("letters", model="m", ids=[1, 2**31])
        change.put_limit("letters", Limit("terms", 2**40), model="m")
        change.put_source("letters", "f.md", source=SourceFile("x", ("a",), "/b"))
        change.accept("job", [NewUpload("d", "letters", "d.txt", b"Dorano keeps an otter \xff")])
        change.stage(document("e", "Elmar keeps a lynx"), collection="letters")
    catalog.close()


def told(truth: Truth, scratch: Path) -> dict[str, object]:
    """What stands in it, but for times and what is drawn by chance."""
    truth.bring_points(scratch)
    points = {each.name: each.read_text() for each in scratch.iterdir()}
    with closing(truth.catalog(TENANT)) as catalog, catalog.view() as view:
        found = {"tenants": truth.tenants(), "points": points, **_told_of_catalog(view)}
    with closing(truth.control()) as control:
        every, quota, switch = control.keys(None), control.quota(TENANT), control.switch()
        found["keys"] = [[each.id, each.role.label, each.bound, each.note, bool(each.revoked)] for each in every]
        found["quota"], found["switch"] = [quota.documents, quota.chunks], [switch.enabled, switch.share]
        found["fingerprints"] = control.fingerprints()
    return json.loads(json.dumps(found))


def _told_of_catalog(view: CatalogView) -> dict[str, object]:
    entries = view.documents(EVERYTHING)
    state, limit = view.state(), view.limit("letters", model="m")
    assert limit is not None
    return {
        "numbers": [state.changes, state.chunks, state.removed, state.vectors],
        "collections": [[each.name, each.rules] for each in view.collections()],
        "documents": [[each.id, each.collection, each.title, each.metadata, each.parts] for each in entries],
        "passages": [[p.id, p.text, p.place, p.page, p.metadata] for each in entries for p in view.passages(each.id)],
        "filtered": [each.id for each in view.documents(condition({"n": {"$gte": 2}, "team": "x"}))],
        "words": [each.passage.id for each in view.lexical("who keeps a pony", EVERYTHING, limit=9)],
        "vectors": view.embedded_after(0, embedder="e", limit=9).vectors.tolist(),
        "marked": view.marked_after(0).rows.tolist(),
        "removed": view.removed_after(0).tolist(),
        "prefix": view.prefix("letters", model="m"),
        "limit": [limit.terms, limit.nbytes],
        "sources": [[name, each.signature, each.documents] for name, each in view.sources("letters").items()],
        "uploads": [
            [
                each.number,
                each.document,
                each.collection,
                each.name,
                each.state,
                (view.content(each.number) or b"").hex(),
            ]
            for each in view.uploads("job")
        ],
    }


def main() -> None:
    name = sys.argv[1]
    with TemporaryDirectory() as scratch, postgres_server() as server:
        assert server is not None, "there is no PostgreSQL on this machine"
        url = server.database()
        with closing(PostgresTruth(url, Path(scratch, "here"))) as truth:
            fill(truth, Path(scratch, "w1.toml"))
        with closing(PostgresTruth(url, Path(scratch, "here"))) as truth:
            found = told(truth, Path(scratch, "points"))
        dump = Path(scratch, "dump.sql")
        dump.touch()
        dump.chmod(0o666)
        server.run("pg_dump", url, "--no-owner", "--no-privileges", "--inserts", f"--file={dump}")
        text = _NEWER.sub("", dump.read_text())
    assert SECRET not in text
    (FOLDER / f"{name}.sql").write_text(text)
    (FOLDER / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
