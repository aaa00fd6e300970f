"""A loaded model in service: its engine, tokenizer and identity, and how its records are packed and reused."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from blend.engine.engine import Engine
from blend.engine.sampling import Sampling
from blend.fuse.fuse import BlendOrder
from retriever.documents import Json
from service.model.capture_context import ALONE, CaptureContext, ChunkIds, in_context
from service.model.prompt_builder import SYSTEM, Ids, PromptBuilder, PromptPassage, question_turns
from service.model.speeds import ModelSpeeds
from store.fingerprint import Fingerprint
from store.record import Record


def made_up_ids(tokens: int, *, vocabulary: int) -> Ids:
    """Meaningless token ids, for measurements of a model."""
    return tuple((3 + 7 * place) % vocabulary for place in range(tokens))


def _hold_nothing(tenant: str, session: str = "") -> None:
    """A model without a service hands no prompts over."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is loaded, and how it is used. The fingerprint's prefix is empty.

    `order`: what a request gets that asks for nothing else; with `speeds`, where it is sooner than reading.
    `system`: the system prompt of new collections; None for the one that prompts have where nothing is said.
    `usual`: how its authors have it sample.
    `has_states`: it keeps more of a prompt than keys and values, which nobody else can go on with.
    `let_go`: called with a tenant of which something was deleted, before it goes; its prompts may hold it.
    `end_session`: called with a tenant, and the name of a session of which nothing is to be kept.
    """

    engine: Engine
    prompt_builder: PromptBuilder
    fingerprint: Fingerprint
    codec: str
    order: BlendOrder
    window: int
    vocabulary: int
    speeds: ModelSpeeds | None = None
    has_states: bool = False
    system: str | None = None
    usual: Sampling = field(default_factory=lambda: Sampling(temperature=1.0))
    let_go: Callable[[str], None] = _hold_nothing
    end_session: Callable[[str, str], None] = _hold_nothing

    def prefix(self, rules: Json) -> Ids:
        """The prefix behind which the chunks of a collection with these rules are captured, as rendered today."""
        system = rules.get("system")
        turns = question_turns([PromptPassage("")], question="", system=SYSTEM if system is None else str(system))
        return self.prompt_builder.lay(turns).prefix

    def ids(self, text: str) -> Ids | None:
        """The token ids of a chunk; None for one that can be served as text only."""
        stripped = text.strip()
        if not stripped or not self.prompt_builder.says(stripped):
            return None
        return self.prompt_builder.ids(stripped)

    def captured(self, chunks: Sequence[ChunkIds], *, payer: str = "") -> Future[list[Record]]:
        """Begins to compute the records of chunks, all of them behind the same ids that they share."""
        ids, before = ([each.all for each in chunks], [each.before for each in chunks])
        if not any(before):
            return self.engine.capture(chunks[0].shared, ids, payer=payer)
        return self.engine.capture(chunks[0].shared, ids, before=before, payer=payer)

    def titled(self, text: str, title: str, *, prefix: Ids, context: CaptureContext = ALONE) -> ChunkIds | None:
        """The ids to capture for a chunk, with the context that the window holds; None as for `ids`."""
        passage = PromptPassage(text.strip(), title)
        if self.ids(passage.text) is None:
            return None
        return in_context(self.prompt_builder, passage, context=context, prefix=prefix, window=self.window)

    def counted(self, texts: Iterable[str]) -> list[int]:
        """How many tokens each text has, as a chunker counts them."""
        return [len(self.prompt_builder.tokenizer.encode_text(text)) for text in texts]
