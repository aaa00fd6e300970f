"""The message of a response while it grows, and the events of that. Knows no other items."""

import secrets
from collections.abc import Iterator, Mapping, Sequence

from service.openai.answer_bodies import TokenLogprob
from service.openai.responses.response_bodies import (
    CitationAdded,
    EndStatus,
    FileCitation,
    ItemChanged,
    NumberedEvent,
    OutputItem,
    OutputMessage,
    OutputText,
    PartChanged,
    TextAdded,
    TextDone,
)


class TextItem:
    """A message, the last item of `output` from its first event on. `numbers`: those of the response's events.

    `files`: the names of the files that it cites, by their ids.
    """

    def __init__(self, output: list[OutputItem], numbers: Iterator[int], *, files: Mapping[str, str]) -> None:
        self._output = output
        self._numbers = numbers
        self._files = files
        self._index = len(output)
        self._message = OutputMessage(id=f"msg_{secrets.token_hex(16)}", status="in_progress", content=[])
        self._texts: list[str] = []
        self._part = OutputText(text="")

    def opening(self) -> Iterator[NumberedEvent]:
        """An item, and in it a text without a word."""
        yield self._changed("response.output_item.added")
        yield self._part_changed("response.content_part.added")
        self._message.content = [self._part]
        self._output.append(self._message)

    def said(self, text: str, logprobs: Sequence[TokenLogprob]) -> Iterator[NumberedEvent]:
        """More of the text."""
        self._texts.append(text)
        self._part.logprobs += logprobs
        yield TextAdded(
            type="response.output_text.delta",
            sequence_number=next(self._numbers),
            item_id=self._message.id,
            output_index=self._index,
            delta=text,
            logprobs=[*logprobs],
        )

    def end(self, status: EndStatus) -> None:
        """Makes the item what it is when nothing more comes."""
        self._part.text = "".join(self._texts)
        self._message.status = status

    def closing(self, status: EndStatus) -> Iterator[NumberedEvent]:
        """The whole text with the files that it cites, and the end of the item."""
        self.end(status)
        yield from self._cited()
        yield TextDone(
            type="response.output_text.done",
            sequence_number=next(self._numbers),
            item_id=self._message.id,
            output_index=self._index,
            text=self._part.text,
            logprobs=self._part.logprobs,
        )
        yield self._part_changed("response.content_part.done")
        yield self._changed("response.output_item.done")

    def _cited(self) -> Iterator[CitationAdded]:
        for file_id, filename in self._files.items():
            citation = FileCitation(file_id=file_id, filename=filename, index=len(self._part.text))
            self._part.annotations.append(citation)
            yield CitationAdded(
                type="response.output_text.annotation.added",
                sequence_number=next(self._numbers),
                item_id=self._message.id,
                output_index=self._index,
                annotation=citation,
                annotation_index=len(self._part.annotations) - 1,
            )

    def _part_changed(self, kind: str) -> PartChanged:
        return PartChanged(
            type=kind,
            sequence_number=next(self._numbers),
            item_id=self._message.id,
            output_index=self._index,
            part=self._part,
        )

    def _changed(self, kind: str) -> ItemChanged:
        return ItemChanged(type=kind, sequence_number=next(self._numbers), output_index=self._index, item=self._message)
