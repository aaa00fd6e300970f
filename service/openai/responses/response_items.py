"""The items of a response while they grow: a search, a message, calls; and the events of these. Searches nothing."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from service.answers.answer_request import Lookup
from service.answers.events import Source
from service.openai.answer_bodies import TokenLogprob
from service.openai.responses.response_bodies import (
    CalledItem,
    EndStatus,
    FileCitation,
    FileSearchCall,
    FoundText,
    OutputItem,
    OutputMessage,
    OutputText,
    StreamEvent,
)
from service.openai.stored_files import FILES, attributes_of, copied


class EventNumbers:
    """The numbers of one stream's events, in their order."""

    def __init__(self) -> None:
        self._numbers = count()

    def event(self, kind: str, **told: object) -> StreamEvent:
        """The next event, which tells this."""
        return StreamEvent(type=f"response.{kind}", sequence_number=next(self._numbers), **told)


@dataclass(frozen=True, slots=True)
class SearchItem:
    """What a search adds to a response. `shows_texts`: its item has what was found."""

    lookup: Lookup
    shows_texts: bool

    def events(
        self, output: list[OutputItem], sources: Sequence[Source], *, numbers: EventNumbers
    ) -> Iterator[StreamEvent]:
        """The search from its beginning to its end, the last item of `output` from its first event on."""
        call = FileSearchCall(id=f"fs_{secrets.token_hex(16)}", status="in_progress", queries=[self.lookup.query])
        at = len(output)
        yield numbers.event("output_item.added", output_index=at, item=call)
        output.append(call)
        for state in ("in_progress", "searching", "completed"):
            call.status = state
            yield numbers.event(f"file_search_call.{state}", item_id=call.id, output_index=at)
        call.results = self._found(sources) if self.shows_texts else None
        yield numbers.event("output_item.done", output_index=at, item=call)

    def files(self, sources: Sequence[Source]) -> dict[str, str]:
        """The names of the files that it found, by their ids."""
        return {each.file_id: each.filename for each in self._found(sources)}

    def _found(self, sources: Sequence[Source]) -> list[FoundText]:
        """What it found, best first."""
        found = [
            (each, copied(each.document_id, each.passage.collection), each.passage)
            for each in sorted(sources, key=lambda source: -source.score)
            if each.passage and each.passage.collection in self.lookup.collections
        ]
        return [
            FoundText(
                file_id=FILES.id_of(document),
                filename=each.title or document,
                score=each.score,
                attributes=attributes_of(passage.metadata),
                text=each.text,
            )
            for each, document, passage in found
        ]


class WrittenItem:
    """An item that the model writes, the last of `output` from its first event on."""

    def __init__(self, item: OutputMessage | CalledItem, output: list[OutputItem], *, numbers: EventNumbers) -> None:
        self._item = item
        self._output = output
        self._index = len(output)
        self._numbers = numbers
        self._written: list[str] = []

    def opening(self) -> Iterator[StreamEvent]:
        """The item without a word."""
        yield self._numbers.event("output_item.added", output_index=self._index, item=self._item)
        yield from self._opened()
        self._output.append(self._item)

    def closing(self, status: EndStatus) -> Iterator[StreamEvent]:
        """All that is written, and the end of the item."""
        self.end(status)
        yield from self._closed()
        yield self._numbers.event("output_item.done", output_index=self._index, item=self._item)

    def end(self, status: EndStatus) -> None:
        """Makes the item what it is when nothing more comes."""
        self._item.status = status

    def _opened(self) -> Iterator[StreamEvent]:
        yield from ()

    def _closed(self) -> Iterator[StreamEvent]:
        yield from ()

    def _event(self, kind: str, **told: object) -> StreamEvent:
        return self._numbers.event(kind, item_id=self._item.id, output_index=self._index, **told)


class TextItem(WrittenItem):
    """A message, which has one text. `files`: the names of the files that it cites, by their ids."""

    def __init__(self, output: list[OutputItem], numbers: EventNumbers, *, files: Mapping[str, str]) -> None:
        self._message = OutputMessage(id=f"msg_{secrets.token_hex(16)}", status="in_progress", content=[])
        super().__init__(self._message, output, numbers=numbers)
        self._files = files
        self._part = OutputText(text="")

    def said(self, text: str, logprobs: Sequence[TokenLogprob]) -> Iterator[StreamEvent]:
        """More of the text."""
        self._written.append(text)
        self._part.logprobs += logprobs
        yield self._event("output_text.delta", content_index=0, delta=text, logprobs=[*logprobs])

    def end(self, status: EndStatus) -> None:
        self._part.text = "".join(self._written)
        super().end(status)

    def _opened(self) -> Iterator[StreamEvent]:
        yield self._event("content_part.added", content_index=0, part=self._part)
        self._message.content = [self._part]

    def _closed(self) -> Iterator[StreamEvent]:
        part = self._part
        for number, (file_id, filename) in enumerate(self._files.items()):
            citation = FileCitation(file_id=file_id, filename=filename, index=len(part.text))
            part.annotations.append(citation)
            told = {"annotation": citation, "annotation_index": number}
            yield self._event("output_text.annotation.added", content_index=0, **told)
        yield self._event("output_text.done", content_index=0, text=part.text, logprobs=part.logprobs)
        yield self._event("content_part.done", content_index=0, part=part)


class CallItem(WrittenItem):
    """A call of a function."""

    def __init__(self, output: list[OutputItem], numbers: EventNumbers, *, call_id: str, name: str) -> None:
        self._call = CalledItem(id=f"fc_{secrets.token_hex(16)}", call_id=call_id, name=name)
        super().__init__(self._call, output, numbers=numbers)

    def said(self, arguments: str) -> Iterator[StreamEvent]:
        """More of the arguments."""
        self._written.append(arguments)
        yield self._event("function_call_arguments.delta", delta=arguments)

    def end(self, status: EndStatus) -> None:
        self._call.arguments = "".join(self._written)
        super().end(status)

    def _closed(self) -> Iterator[StreamEvent]:
        call = self._call
        yield self._event("function_call_arguments.done", name=call.name, arguments=call.arguments)
