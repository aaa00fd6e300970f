"""A request while vLLM answers it: what is told of each of its answers, and when they end. Knows no HTTP."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from blend.engine.answer_builder import AnswerText
from blend.engine.engine import ChoiceEnded, Done, EngineRequest, Event, Finish, MessagePiece, PendingRequest
from blend.text.tokenizer import Tokenizer
from service.vllm.vllm_client import ChatPiece, GeneratedPiece, GeneratorAway

MESSAGE = ("content", "tool_calls")  # what of a message is told


class GeneratedAnswer(PendingRequest):
    """A request on its way to vLLM. `rules`: its own over tokens and answers, as vLLM takes them."""

    def __init__(
        self,
        request: EngineRequest,
        ids: tuple[int, ...],
        *,
        rules: Mapping[str, object],
        listen: Callable[[Event], None],
    ) -> None:
        super().__init__(request, listen)
        self.ids = ids
        self.rules = rules
        self.is_ready = False  # something was told: nobody else may answer any more
        self.generated = 0
        self.end: Done | None = None  # of the last answer, which is yet to be told
        self._texts: dict[int, AnswerText] = {}  # of the answers that are not over
        self._counts: dict[int, int] = {}  # tokens by answer, of messages

    def tell(self, event: Event) -> None:
        self.is_ready = True
        super().tell(event)

    def begin(self, tokenizer: Tokenizer) -> None:
        """VLLM's tokens follow."""
        sampling = self.request.sampling
        self._texts = {choice: AnswerText(sampling, tokenizer) for choice in range(sampling.choices)}

    def take(self, piece: GeneratedPiece) -> None:
        """Tells of the next tokens of an answer until it ends, or a stop string is found in it.

        Raises GeneratorAway where it ends as none should.
        """
        text = self._texts.get(piece.choice)
        if text is None:  # a stop string ended it, and vLLM went on
            return
        for picked in piece.picked:
            token = text.add(replace(picked, top=picked.top[: self.request.sampling.logprobs or 0]))
            self.generated += 1
            if token is not None:
                self.tell(replace(token, choice=piece.choice))
            if text.end is not None:
                break
        if text.end is not None or piece.finish is not None:
            self._end(piece.choice, finish=piece.finish)

    def take_message(self, piece: ChatPiece) -> None:
        """Tells of the next part of an answer's message. Raises GeneratorAway where it ends as none should."""
        delta = {name: each for name in MESSAGE if (each := piece.delta.get(name))}
        if delta:
            self.tell(MessagePiece(delta, piece.choice))
        self._counts[piece.choice] = piece.generated
        if piece.finish is None:
            return
        del self._texts[piece.choice]
        self.generated = sum(self._counts.values())
        if piece.finish not in ("stop", "length", "tool_calls"):
            raise GeneratorAway(f"its answer ended by {piece.finish!r}")
        reason = cast(Finish, piece.finish)
        if self._texts:
            self.tell(ChoiceEnded(piece.choice, reason, ""))
        else:
            self.end = Done(reason, "", self.generated, self.age_s, piece.choice)

    def _end(self, choice: int, *, finish: str | None) -> None:
        text = self._texts.pop(choice)
        if text.end is None and finish not in ("stop", "length"):
            raise GeneratorAway(f"its answer ended by {finish!r}")
        reason, held = text.finish(text.end or ("stop" if finish == "stop" else "length"))
        if self._texts:
            self.tell(ChoiceEnded(choice, reason, held))
        else:
            self.end = Done(reason, held, self.generated, self.age_s, choice)
