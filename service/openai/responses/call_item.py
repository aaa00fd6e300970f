"""A call of a function while it grows, and the events of that. Knows no other items."""

import secrets
from collections.abc import Iterator

from service.openai.responses.response_bodies import (
    ArgumentsAdded,
    ArgumentsDone,
    CalledItem,
    EndStatus,
    ItemChanged,
    NumberedEvent,
    OutputItem,
)


class CallItem:
    """A call, the last item of `output` from its first event on. `numbers`: those of the response's events."""

    def __init__(self, output: list[OutputItem], numbers: Iterator[int], *, call_id: str, name: str) -> None:
        self._output = output
        self._numbers = numbers
        self._index = len(output)
        self._call = CalledItem(id=f"fc_{secrets.token_hex(16)}", call_id=call_id, name=name)
        self._arguments: list[str] = []

    def opening(self) -> Iterator[NumberedEvent]:
        """An item without arguments."""
        yield self._changed("response.output_item.added")
        self._output.append(self._call)

    def said(self, arguments: str) -> Iterator[NumberedEvent]:
        """More of the arguments."""
        self._arguments.append(arguments)
        yield ArgumentsAdded(
            type="response.function_call_arguments.delta",
            sequence_number=next(self._numbers),
            item_id=self._call.id,
            output_index=self._index,
            delta=arguments,
        )

    def end(self, status: EndStatus) -> None:
        """Makes the item what it is when nothing more comes."""
        self._call.arguments = "".join(self._arguments)
        self._call.status = status

    def closing(self, status: EndStatus) -> Iterator[NumberedEvent]:
        """All arguments, and the end of the item."""
        self.end(status)
        yield ArgumentsDone(
            type="response.function_call_arguments.done",
            sequence_number=next(self._numbers),
            item_id=self._call.id,
            output_index=self._index,
            name=self._call.name,
            arguments=self._call.arguments,
        )
        yield self._changed("response.output_item.done")

    def _changed(self, kind: str) -> ItemChanged:
        return ItemChanged(type=kind, sequence_number=next(self._numbers), output_index=self._index, item=self._call)
