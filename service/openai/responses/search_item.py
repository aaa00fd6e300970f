"""The file search of a response: its item, the events of that, and the files that it found. Searches nothing."""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from service.answers.answer_request import Lookup
from service.answers.events import Source
from service.openai.object_ids import FILES
from service.openai.responses.response_bodies import (
    FileSearchCall,
    FoundText,
    ItemChanged,
    NumberedEvent,
    OutputItem,
    SearchChanged,
)
from service.openai.stored_files import attributes_of

_STATES: Final[tuple[Literal["in_progress", "searching", "completed"], ...]] = ("in_progress", "searching", "completed")


@dataclass(frozen=True, slots=True)
class SearchItem:
    """What a search adds to a response. `shows_texts`: its item has what was found."""

    lookup: Lookup
    shows_texts: bool

    def events(
        self, output: list[OutputItem], sources: Sequence[Source], *, numbers: Iterator[int]
    ) -> Iterator[NumberedEvent]:
        """The search from its beginning to its end, the last item of `output` from its first event on."""
        call = FileSearchCall(id=f"fs_{secrets.token_hex(16)}", status="in_progress", queries=[self.lookup.query])
        at = len(output)
        yield ItemChanged(type="response.output_item.added", sequence_number=next(numbers), output_index=at, item=call)
        output.append(call)
        for state in _STATES:
            call.status = state
            kind = f"response.file_search_call.{state}"
            yield SearchChanged(type=kind, sequence_number=next(numbers), output_index=at, item_id=call.id)
        call.results = self._found(sources) if self.shows_texts else None
        yield ItemChanged(type="response.output_item.done", sequence_number=next(numbers), output_index=at, item=call)

    def files(self, sources: Sequence[Source]) -> dict[str, str]:
        """The names of the files that it found, by their ids."""
        return {each.file_id: each.filename for each in self._found(sources)}

    def _found(self, sources: Sequence[Source]) -> list[FoundText]:
        return [
            FoundText(
                file_id=FILES.id_of(each.document_id),
                filename=each.title or each.document_id,
                score=each.score,
                attributes=attributes_of(each.passage.metadata),
                text=each.text,
            )
            for each in sources
            if each.passage and each.passage.collection == self.lookup.collection
        ]
