"""Token ids to text while they come, one character at a time. Knows no model and no stop strings."""

import codecs

from blend.model.tokenizer import Tokenizer


class Detokenizer:
    """The text of one answer. What `push` and `finish` returned, joined, is the text of all ids that are not hidden.

    Every token's bytes are known for themselves, so the work does not grow with the length of the answer.
    """

    def __init__(self, tokenizer: Tokenizer, *, hidden: frozenset[int] | None = None) -> None:
        """Makes the text of one answer. Hides all control tokens, unless `hidden` names others."""
        self._tokenizer = tokenizer
        self._hidden = tokenizer.control if hidden is None else hidden
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes; they never change again."""
        if token_id in self._hidden:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """Ends the answer. A character whose bytes did not all come is dropped; nothing else was kept back."""
        self._decoder.reset()
        return ""
