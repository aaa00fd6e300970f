"""A question with its passages, and the JSON or JSONL of a user's file that it is read from. Knows no model."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from service.errors import ServiceError
from service.lab.questions.forms import Form
from service.model.capture_context import CaptureContext
from service.model.prompt_builder import SYSTEM, PromptPassage, TurnParts

Json = dict[str, object]

SUPPORTING = "is_supporting"  # whether a passage is one that the answer rests on, as MuSiQue says it
FACTS = "supporting_facts"  # titles of those that it rests on, as HotpotQA says it
BEFORE = "before"  # what stands before a passage in its document
TEXTS = ("text", "content", "paragraph_text", "passage")
LISTS = ("ctxs", "passages", "paragraphs", "contexts", "context", "documents")


class SuiteError(ServiceError, ValueError):
    """A suite that cannot be used; the message names the place and what is wanted there."""


@dataclass(frozen=True, slots=True)
class Case:
    """One question. No `answers`: full prefill's own is compared. `needs`: how many passages answer it, if known.

    `form`: how its prompt is laid out, behind the turns `before`. `suite`: what it is counted with. `foreign`: numbers
    of the passages that the answer does not rest on, if known. `contexts`: what each passage is captured behind; none
    are captured alone. `skip`: how the first answer begins, which the question tells already; that is not scored.
    `foils`: wrong answers, which the first one must be likelier than. `system`: the system prompt.
    """

    question: str
    passages: tuple[PromptPassage, ...]
    answers: tuple[str, ...] = ()
    needs: int | None = None
    form: Form = field(default_factory=Form)
    before: tuple[TurnParts, ...] = ()
    suite: str = ""
    foreign: tuple[int, ...] | None = None
    contexts: tuple[CaptureContext, ...] = ()
    skip: str = ""
    foils: tuple[str, ...] = ()
    system: str = SYSTEM

    @property
    def wanted(self) -> tuple[str, ...]:
        """What the model's own answer is compared with: not with a text that only goes on from what is told."""
        return self.answers[1:] if self.skip else self.answers

    def arranged(self, numbers: Sequence[int]) -> "Case":
        return replace(
            self,
            passages=tuple([self.passages[number] for number in numbers]),
            foreign=self.foreign and tuple([at for at, number in enumerate(numbers) if number in (self.foreign or ())]),
            contexts=self.contexts and tuple([self.contexts[number] for number in numbers]),
        )

    @property
    def turns(self) -> list[TurnParts]:
        return self.form.turns(self.passages, question=self.question, system=self.system, before=self.before)


def read_cases(path: Path) -> list[Case]:
    """A JSON list, an object that holds one, or JSON lines: each with a question, passages and, if known, answers."""
    entries = _placed(read_text(path), path)
    return _some([_shown(_asked(entry, place), entry, place=place) for place, entry in entries], path)


def read_questions(path: Path) -> list[Case]:
    """The questions of such a file without passages, or of a text with one in each line."""
    text = read_text(path)
    if path.suffix.startswith(".json") or text.lstrip().startswith(("{", "[")):
        return _some([_asked(entry, place) for place, entry in _placed(text, path)], path)
    return _some([Case(line.strip(), ()) for line in text.split("\n") if line.strip()], path)


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SuiteError(f"{path}, line {line} cannot be read: save the file as UTF-8 ({error.reason})") from error
    except (OSError, ValueError) as error:
        raise SuiteError(f"{str(path)!r} cannot be read: name a file that exists ({error})") from error


def _some(cases: list[Case], path: Path) -> list[Case]:
    if not cases:
        raise SuiteError(f"the suite {str(path)!r} holds no questions")
    return cases


def _placed(text: str, path: Path) -> Iterator[tuple[str, Json]]:
    for number, entry in enumerate(_entries(text, path), 1):
        yield f"{path}, entry {number}", entry


def _entries(text: str, path: Path) -> Iterator[Json]:
    try:
        whole = cast(object, json.loads(text))
    except json.JSONDecodeError as error:
        if text.lstrip().startswith("["):
            raise SuiteError(f"{path}, line {error.lineno} is no JSON: {error}") from error
        yield from _lines(text, path)
        return
    if isinstance(whole, dict):
        found = cast(Json, whole)
        lists = [cast(object, value) for value in found.values() if isinstance(value, list)]
        whole = [found] if "question" in found or "query" in found or len(lists) != 1 else lists[0]
    if not isinstance(whole, list):
        raise SuiteError(f"{path} holds no list of questions")
    for number, entry in enumerate(cast(list[object], whole), 1):
        yield _object(entry, place=f"{path}, entry {number}")


def _lines(text: str, path: Path) -> Iterator[Json]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield _object(json.loads(line), place=f"{path}, line {number}")
            except json.JSONDecodeError as error:
                raise SuiteError(f"{path}, line {number} is no JSON: {error}") from error


def _object(entry: object, *, place: str) -> Json:
    if not isinstance(entry, dict):
        raise SuiteError(f"{place}: an object with a question is wanted, got {type(entry).__name__}")
    return cast(Json, entry)


def _asked(entry: Json, place: str) -> Case:
    question = entry.get("question", entry.get("query"))
    if not isinstance(question, str) or not question.strip():
        raise SuiteError(f"{place}: 'question' must be a text, got {question!r}")
    skip = entry.get("skip") or ""
    if not isinstance(skip, str):
        raise SuiteError(f"{place}: 'skip' must be a text, got {skip!r}")
    answers, foils = (_listed(entry, name, place=place) for name in ("answer", "foil"))
    return Case(question, (), answers, skip=skip, foils=foils)


def _shown(case: Case, entry: Json, *, place: str) -> Case:
    """The case with its passages, and with what the file says of them."""
    name = next((name for name in LISTS if name in entry), None)
    if name is None:
        raise SuiteError(f"{place}: no passages; give them as {LISTS[0]!r}: [{{title, text}}], or name a corpus")
    given = entry[name]
    if not isinstance(given, list):
        raise SuiteError(f"{place}: {name!r} must be a list, got {type(given).__name__}")
    listed = cast(list[object], given)
    passages = tuple(_passage(each, place=f"{place}, {name}[{i}]") for i, each in enumerate(listed))
    described = [cast(Json, each) if isinstance(each, dict) else {} for each in listed]
    before = [each.get(BEFORE) for each in described]
    contexts = tuple(
        CaptureContext(before=PromptPassage(text, passage.title) if isinstance(text, str) else None)
        for text, passage in zip(before, passages, strict=True)
    )
    return replace(
        case,
        passages=passages,
        foreign=_foreign(entry, passages, described=described),
        contexts=contexts if any(before) else (),
    )


def _foreign(entry: Json, passages: Sequence[PromptPassage], *, described: Sequence[Json]) -> tuple[int, ...] | None:
    """The numbers of the passages that the answer does not rest on, where the entry says which it does."""
    facts = entry.get(FACTS)
    if isinstance(facts, dict):  # of columns, as Hugging Face keeps it
        facts = cast(Json, facts).get("title")
    titles = {_first(each) for each in cast(list[object], facts)} if isinstance(facts, list) else set[str]()
    if titles:
        return tuple(at for at, passage in enumerate(passages) if passage.title not in titles)
    if any(SUPPORTING in each for each in described):
        return tuple(at for at, each in enumerate(described) if each.get(SUPPORTING) is False)
    return None


def _first(fact: object) -> str:
    """The title of a supporting fact: it stands before the number of a sentence, or alone."""
    stated = cast(list[object], fact) if isinstance(fact, list) else [fact]
    return str(stated[0]) if stated else ""


def _passage(given: object, *, place: str) -> PromptPassage:
    """A passage out of a text, a pair of a title and its sentences, or an object."""
    match given:
        case str():
            return PromptPassage(given)
        case [str() as title, str() as text]:
            return PromptPassage(text, title)
        case [str() as title, list()] if (sentences := _texts(cast(list[object], given)[1])) is not None:
            return PromptPassage(" ".join(sentence.strip() for sentence in sentences), title)
        case dict() if texts := [text for name in TEXTS if isinstance(text := cast(Json, given).get(name), str)]:
            return PromptPassage(texts[0], str(cast(Json, given).get("title") or ""))
        case _:
            raise SuiteError(f"{place}: a text, or an object with 'text', is wanted, got {str(given)[:60]!r}")


def _listed(entry: Json, name: str, *, place: str) -> tuple[str, ...]:
    """One text under the name, or several under its plural."""
    given = entry.get(f"{name}s", entry.get(name))
    found = [given] if isinstance(given, str) else [] if given is None else _texts(given)
    if found is None:
        raise SuiteError(f"{place}: '{name}s' must be a list of texts, got {given!r}")
    return tuple(found)


def _texts(given: object) -> list[str] | None:
    """The texts of a list; None for what is something else than a list of texts."""
    if not isinstance(given, list):
        return None
    texts = [each for each in cast(list[object], given) if isinstance(each, str)]
    return texts if len(texts) == len(cast(list[object], given)) else None
