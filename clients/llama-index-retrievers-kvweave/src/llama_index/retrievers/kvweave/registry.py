"""The nodes of one collection of kvweave: put in, listed, deleted. Knows neither pipelines nor other stores.

Each is a document of its own, so that it does not matter how a framework batches nodes. A document is listed only when
its caches are computed; until then it is known here which node of which source it is.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final
from urllib.parse import quote

from kvweave_client import Client, Connection, Document, JobFailed, NotFound, batches
from kvweave_client.following import collection_made, name_of
from kvweave_client.options import Json, NewDocument
from llama_index.retrievers.kvweave.nodes import NODE_ID, REF_DOC_ID

_LONGEST_FILTER: Final = 6000  # letters, as it stands in an address
_MOST_JOBS: Final = 200  # that are looked at: newest first


class Registry:
    """The nodes of one collection. Not safe for threads."""

    def __init__(self, connection: Connection, collection: str, *, search: bool, timeout_s: float) -> None:
        self._connection = connection
        self._collection = collection
        self._search = search
        self._timeout_s = timeout_s
        self._is_made = False
        self._is_alone = False  # nothing that somebody else put in is still being computed
        self._running: deque[tuple[str, list[str]]] = deque()  # jobs of ours, with their nodes
        self._failed: deque[str] = deque()  # of those that are over, and nobody was told of
        self._unlisted: dict[str, tuple[str, str]] = {}  # nodes of these, with their source and the last of their jobs

    def put(self, documents: Iterable[NewDocument]) -> Iterator[list[str]]:
        """Make these the nodes of their ids, each id once; yields the ids of each request, when they are safe."""
        for batch in batches({each.get("id"): each for each in documents}.values()):
            if not self._is_made:
                self._client.follow(collection_made(self._collection, search=self._search))
                self._is_made = True
            job = self._client.put_documents(batch, collection=self._collection).job_id
            sources = dict(_marks(each.get("metadata", {})) for each in batch)
            self._running.append((job, [*sources]))
            self._unlisted |= {node: (source, job) for node, source in sources.items()}
            yield [*sources]

    def nodes_of(self, ref_doc_ids: Iterable[str]) -> set[str]:
        """The ids of all nodes of these sources."""
        wanted = {*ref_doc_ids}
        if not wanted:
            return set()
        self._look()
        found = {node for node, (source, _) in self._unlisted.items() if source in wanted}
        for group in _groups(sorted(wanted)):
            found.update(self.fitting({REF_DOC_ID: {"$in": group}}))
        return found

    def every(self) -> set[str]:
        """The ids of all nodes."""
        self._look()
        return {*self.fitting({}), *self._unlisted}

    def fitting(self, where: Json) -> Iterator[str]:
        """Yields the ids of those that are listed and fit the filter."""
        ours: Json = {"$and": [{NODE_ID: {"$exists": True}}, where]}
        for document in self._listed(ours):
            yield _marks(document.metadata)[0]

    def delete(self, node_ids: Iterable[str]) -> None:
        """Delete those of these nodes that are there, computed or not."""
        for node in node_ids:
            name = name_of(node, self._collection)
            if name is not None:
                with suppress(NotFound):
                    self._client.delete_document(name)
            self._unlisted.pop(node, None)

    def clear(self) -> None:
        """Delete all nodes, and leave what others put into the collection."""
        if any(self._listed({NODE_ID: {"$exists": False}})):
            self.delete(self.every())
            return
        with suppress(NotFound):
            self._client.delete_collection(self._collection)
        self._is_made = False
        self._running.clear()
        self._failed.clear()
        self._unlisted.clear()

    def wait(self, timeout_s: float | None) -> None:
        """Wait until all that was put in here is computed. Raises JobFailed once for each job that failed."""
        for job, _ in [*self._running]:
            with suppress(JobFailed, NotFound):
                self._client.wait(job, timeout_s=timeout_s)
        self._look()
        while self._failed:
            try:
                self._client.wait(self._failed[0])
            except (JobFailed, NotFound) as error:  # or long over, and forgotten
                self._failed.popleft()
                if isinstance(error, JobFailed):
                    raise

    @property
    def _client(self) -> Client:
        return self._connection.client

    def _listed(self, where: Json) -> Iterator[Document]:
        with suppress(NotFound):  # there is no such collection yet
            yield from self._client.documents(collection=self._collection, filter=where)

    def _look(self) -> None:
        """Forgets what is listed by now: jobs end in their order."""
        while self._running and self._is_over(self._running[0][0]):
            job, nodes = self._running.popleft()
            for node in nodes:
                if self._unlisted.get(node, ("", ""))[1] == job:
                    del self._unlisted[node]
        if not self._is_alone:
            self._await_others()

    def _is_over(self, job: str) -> bool:
        try:
            found = self._client.job(job)
        except NotFound:
            return True
        self._failed += [job] if found.is_over and found.status != "done" else []
        return found.is_over

    def _await_others(self) -> None:
        """Waits for what another process put in before, such as a pipeline's worker: it may not be listed yet."""
        ours = {job for job, _ in self._running}
        for job in islice(self._client.jobs(), _MOST_JOBS):
            if job.is_over or job.id in ours:
                continue
            if any(item.collection == self._collection for item in self._client.job_items(job.id)):
                with suppress(JobFailed):
                    self._client.wait(job.id, timeout_s=self._timeout_s)
        self._is_alone = True


def _marks(metadata: Json) -> tuple[str, str]:
    """A node's id and its source's, as they are registered with it."""
    return str(metadata.get(NODE_ID)), str(metadata.get(REF_DOC_ID))


def _groups(ids: Iterable[str]) -> Iterator[list[str]]:
    """Groups of ids, as many in each as an address holds."""
    group: list[str] = []
    length = 0
    for each in ids:
        size = len(quote(json.dumps(each)))
        if group and length + size > _LONGEST_FILTER:
            yield group
            group, length = [], 0
        group.append(each)
        length += size
    if group:
        yield group
