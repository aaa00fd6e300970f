"""A request while vLLM answers it: what is told of each of its answers, and when they end. Knows no HTTP."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from blend.engine.answer_builder import AnswerText
from blend.engine.engine import ChoiceEnded, Done, EngineRequest, Event
from blend.engine.pending_request import PendingRequest
from blend.model.tokenizer import Tokenizer
from service.generator.vllm_client import GeneratedPiece, GeneratorAway


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

    def tell(self, event: Event) -> None:
        """See `PendingRequest.tell`."""
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

    def _end(self, choice: int, *, finish: str | None) -> None:
        text = self._texts.pop(choice)
        if text.end is None and finish not in ("stop", "length"):
            raise GeneratorAway(f"its answer ended by {finish!r}")
        reason, held = text.finish(text.end or ("stop" if finish == "stop" else "length"))
        if self._texts:
            self.tell(ChoiceEnded(choice, reason, held))
        else:
            self.end = Done(reason, held, self.generated, self.age_s, choice)
