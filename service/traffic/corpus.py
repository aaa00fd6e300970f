"""Chunks that are put into a kvweave service before its requests come, and go again. Times nothing."""

from collections.abc import Sequence

import httpx

from service.errors import NotFound, ServiceError, Unavailable

WAIT_S = 600.0  # for a chunk to be computed


class TrafficCorpus:
    """A collection of its own in a service, found by no search. It is deleted when this is closed."""

    def __init__(self, url: str, *, key: str, name: str) -> None:
        self._name = name
        self._put: set[str] = set()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(base_url=url, headers=headers, timeout=WAIT_S)

    async def put(self, texts: Sequence[str]) -> None:
        """Puts in what is not there, and returns when it is stored.

        Raises NotFound where no kvweave service answers, and another ServiceError where it does not take the texts.
        """
        new = [text for text in dict.fromkeys(texts) if text not in self._put]
        if not new:
            return
        if not self._put:
            await self._sent("PUT", f"/v1/collections/{self._name}", body={"search": False})
        document = {"id": f"{self._name}-{len(self._put)}", "chunks": [{"text": text} for text in new]}
        self._put.update(new)
        body = {"documents": [document], "collection": self._name}
        job = str((await self._sent("POST", "/v1/documents", body=body))["job_id"])
        await self._over(f"/v1/jobs/{job}/events")
        found = await self._sent("GET", f"/v1/jobs/{job}")
        if found["status"] != "done" or found["stored"] != found["chunks"]:
            told = f"{found['stored']} of {found['chunks']} stored, the job is {found['status']}"
            raise Unavailable(f"--put: the service did not compute the chunks ({told}): its log says why")

    async def aclose(self) -> None:
        """Delete the collection."""
        try:
            if self._put:
                await self._sent("DELETE", f"/v1/collections/{self._name}")
        finally:
            await self._client.aclose()

    async def _over(self, path: str) -> None:
        """Returns when a job has told its last event."""
        try:
            await self._client.get(path)
        except httpx.TransportError:
            return  # what became of the job is looked at in any case

    async def _sent(self, method: str, path: str, *, body: object = None) -> dict[str, object]:
        try:
            response = await self._client.request(method, path, json=body)
            if response.is_success:
                found: dict[str, object] = response.json()
                return found
            if response.status_code in (404, 405):
                raise NotFound(f"{self._client.base_url} is no kvweave service: nothing was put in.")
            said = f"answered {response.status_code}"
        except (httpx.TransportError, ValueError) as error:
            said = f"did not answer ({type(error).__name__})"
        place = f"{self._client.base_url}{path.removeprefix('/')}"
        raise ServiceError(f"--put: {place} {said}: it takes a key that may write")
