"""Finds where an answer begins to call tools. Knows no grammar and no request."""

from collections.abc import Iterable

from blend.text.call_frame import CallFrame
from blend.text.tokenizer import Tokenizer


class CallStart:
    """One answer, token by token. Its calls begin at the first control token of the frame; where the frame begins
    with none, with the answer, as soon as all of it is how the frame opens.
    """

    def __init__(self, frame: CallFrame, tokenizer: Tokenizer) -> None:
        self.begun: int | None = None  # the number of the calls' first token
        self._control = frame.control
        self._opening = frame.opening.text.encode()
        self._tokenizer = tokenizer
        self._read = 0
        self._spelled: bytes | None = b""  # the answer so far, while it may still become a call; else None

    def read(self, ids: Iterable[int]) -> None:
        """Takes the next tokens."""
        for token in ids:
            if self.begun is None:
                self._take(token)
            self._read += 1

    @property
    def awaited(self) -> bytes:
        """What a call of a frame without control tokens would go on with; empty where there is none any more."""
        if self._control is not None or self._spelled is None or self.begun is not None:
            return b""
        return self._opening[len(self._spelled) :]

    def _take(self, token: int) -> None:
        if self._control is not None:
            self.begun = self._read if token == self._control else None
        elif self._spelled is not None:
            self._spelled += self._tokenizer.token_bytes(token)
            if self._spelled.startswith(self._opening):
                self.begun = 0
            elif not self._opening.startswith(self._spelled):
                self._spelled = None
