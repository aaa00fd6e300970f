"""Measures what it costs when a filler's document is deleted: `python -m tests.bench.replaced_filler` prints JSON.

`--chunks 10000` are in documents of 20. `delete`: seconds until the delete is done, and how many blobs went.
`captures`: seconds of capturing `--captures` of them anew, and of the model alone computing the same; `other`: the
share that is not the model. `edit`: how many chunks one changed sentence costs. `--shape 4x256` takes a random model,
as `models.random_model` says; what deletes cost is the same for any.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from random import Random

from retriever.filter_condition import EVERYTHING
from service.documents.chunk_capture import batches
from service.documents.ingest import FILL_BATCH
from service.documents.tenants import SWEEP_S, Tenant
from store.key import CacheKey, Scope
from tests.bench.models import random_model
from tests.service.serving import Inside, Json, in_process, put_in, settings_in, wait_for

TENANT, EACH, TOGETHER = "default", 20, 25
WORDS = ("lamps", "rope", "tin", "harbour", "captain", "heron", "letter", "ledger", "river", "code", "page", "ink")


def document(number: int) -> Json:
    """Chunks of some 24 words, the same whenever it is made."""
    chance = Random(number)
    parts = [{"text": f"{number}/{at}: " + " ".join(chance.choices(WORDS, k=24))} for at in range(EACH)]
    return {"id": f"{number:06}", "title": f"Ledger {number}", "chunks": parts}


def stored(tenant: Tenant) -> set[CacheKey]:
    return {entry.key for entry in tenant.store.entries(Scope(TENANT))}


def settle(tenant: Tenant) -> None:
    def is_settled() -> bool:
        with tenant.catalog.view() as view:
            return not (view.moved(1, swept=False) or view.moved(1, swept=True))

    wait_for(is_settled, "all is captured")


def deleted(tenant: Tenant) -> Json:
    """The delete of a filler's document, with what of it goes on when its time is over."""
    with tenant.catalog.view() as view:
        gone = view.fillers("default")[""][0].document
    before, start = stored(tenant), time.perf_counter()
    is_done = answered = tenant.delete([gone]).done
    first = time.perf_counter() - start
    while not is_done:
        is_done = tenant.sweep(SWEEP_S)
    seconds = time.perf_counter() - start
    blobs = len(before - stored(tenant))
    return {"s": round(seconds, 2), "answered_s": round(first, 2), "done": answered, "blobs": blobs}


def captured(tenant: Tenant, count: int) -> Json:
    """So many captures anew as the service does them, and the same by the model alone."""
    before, start = stored(tenant), time.perf_counter()
    for _ in range(count // FILL_BATCH):
        tenant.recapture(FILL_BATCH)
    seconds = time.perf_counter() - start
    fresh = {key.chunk for key in stored(tenant) - before}
    with tenant.catalog.view() as view:
        passages = view.holding([*view.rows_of([*fresh]).values()], EVERYTHING)
    items = [item for planned in tenant.captures.planned(passages) if (item := planned.item())]
    start = time.perf_counter()
    for at in range(0, len(items), FILL_BATCH):
        for batch in batches(items[at : at + FILL_BATCH]):
            tenant.model.captured([item.chunk for item in batch]).result()
    model = time.perf_counter() - start
    other = round(1 - model / seconds, 3)
    return {"chunks": len(fresh), "s": round(seconds, 2), "model_s": round(model, 2), "other": other}


def edited(inside: Inside, tenant: Tenant, number: int) -> Json:
    """A sentence of a chunk in the middle of a document that is no filler."""
    before, changed = stored(tenant), document(number)
    changed["chunks"][EACH // 2]["text"] += " The bridge is closed."
    with inside.client() as client:
        put_in(client, [changed])
    after = stored(tenant)
    return {"computed": len(after - before), "gone": len(before - after)}


def measure(options: argparse.Namespace) -> Json:
    with tempfile.TemporaryDirectory() as folder:
        model = random_model(options.shape, Path(folder) / "model")
        with in_process(settings_in(Path(folder), model=model)) as inside:
            tenant, count = inside.core.tenants.open(TENANT), options.chunks // EACH
            start = time.perf_counter()
            with inside.client() as client:
                for first in range(0, count, TOGETHER):
                    put_in(client, [document(number) for number in range(first, min(count, first + TOGETHER))])
            settle(tenant)
            built = {"chunks": len(stored(tenant)), "s": round(time.perf_counter() - start, 1)}
            edit = edited(inside, tenant, count - 1)
            with inside.core.ingest.resting():  # what is captured anew is measured for itself
                gone = deleted(tenant)
                anew = captured(tenant, min(options.captures, options.chunks))
    return {"shape": options.shape, "built": built, "edit": edit, "delete": gone, "captures": anew}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--captures", type=int, default=1000)
    parser.add_argument("--shape", default="")
    print(json.dumps(measure(parser.parse_args()), indent=1))


if __name__ == "__main__":
    main()
