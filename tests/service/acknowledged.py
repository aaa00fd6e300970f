"""What a service that is killed acknowledged of documents, and the changes that are asked of it."""

from dataclasses import dataclass, field
from random import Random

import httpx

FULL = "free some space"
REMEDIES = (FULL, "look after the disk", "check its owner and mode", "mend its rights", "let this process write it")
_NAMES = 9


@dataclass(slots=True)
class Acknowledged:
    """What was acknowledged. `texts`: of each document what it may be now, one or two; None: it is not there."""

    texts: dict[str, set[str | None]] = field(default_factory=dict[str, "set[str | None]"])
    jobs: list[str] = field(default_factory=list[str])
    asked: list[str] = field(default_factory=list[str])  # texts that were sent since the last look
    chunks: set[str] = field(default_factory=set[str])  # of all documents, when it was looked last
    acknowledged: int = 0
    refused: int = 0

    def change(self, texts: dict[str, str | None], answer: httpx.Response | None) -> None:
        """Documents were put in, or deleted, and answered so; None where no answer came."""
        self.asked += [text for text in texts.values() if text is not None]
        if answer is not None and answer.status_code == 503:
            self.refused += 1
            assert any(remedy in answer.text for remedy in REMEDIES), answer.text
            if FULL in answer.text and None not in texts.values():
                return  # as if it was not asked; a delete may be half done, and so may what a broken disk did
            answer = None
        is_read = answer is not None and answer.status_code != 404  # as a file that waits to be read is not yet
        for name, text in texts.items():
            assert is_read or answer is None or name.endswith(".txt") or None in self.texts.get(name, {None}), name
            self.texts[name] = {text} if is_read else {*self.texts.get(name, {None}), text}
        if answer is not None:
            assert answer.status_code in ((200, 404) if None in texts.values() else (202,)), answer.text
            self.acknowledged += 1
            self.jobs += [answer.json()["job_id"]] if answer.status_code == 202 else []


def marked(chance: Random, text: str) -> str:
    """With a word that no other text has."""
    return f"{text} It was day {chance.randrange(10**6):06d}mark."


def written(chance: Random) -> str:
    """A document of several chunks, some of which others have, too."""
    sentences = [f"{who} lives in {chance.choice('BCK')}{chance.randint(1, 9)}." for who in ("Halio", "Sunel", "Kelo")]
    return marked(chance, " ".join(chance.choice(sentences) for _ in range(chance.randint(1, 24))))


def change(client: httpx.Client, state: Acknowledged, chance: Random) -> bool:
    """Put documents in or replace them, one or several at once, or delete one; False where no answer came."""
    kind = chance.choice(["put", "put", "several", "file", "delete"])
    count = 5 if kind == "several" else 1
    names = [f"d{number}{'.txt' if kind == 'file' else ''}" for number in chance.sample(range(_NAMES), count)]
    if kind == "delete" and chance.random() < 0.5:
        names = [f"{names[0]}.txt"]
    texts = {name: None if kind == "delete" else written(chance) for name in names}
    documents = [{"id": name, "text": text} for name, text in texts.items()]
    [(name, text), *_] = texts.items()
    answer = None
    try:
        match kind:
            case "delete":
                answer = client.delete(f"/v1/documents/{name}")
            case "put":
                answer = client.put(f"/v1/documents/{name}", json={"text": text})
            case "several":
                answer = client.post("/v1/documents", json={"documents": documents})
            case _:
                answer = client.post("/v1/documents", files={"files": (name, str(text).encode())})
    except httpx.TransportError:
        pass
    state.change(texts, answer)
    return answer is not None
