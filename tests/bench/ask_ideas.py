"""Other ways to choose what is recomputed, beside `ask`: the answers that they lose, by rows of the made-up world.

None of them is in the product. Each names candidates, of which deviation at the check layer chooses, as `ask` does it;
`adaptive` climbs from 2 % until the first token's distribution stands still, and is told from what the others made.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from blend.fuse.capture import capture
from blend.fuse.fuse import BlendOrder, Deviation, fuse
from blend.fuse.policy import POLICIES, RecomputeBudget, Selection
from blend.fuse.prompt import ChunkSpan, HeldRecord, PromptLayout, lay_out
from blend.fuse.record_loader import Readers
from blend.load import LoadedModel, load
from blend.model.context import Context, scattered
from blend.model.step import LayerHooks, LayerRange
from service.builtin import CHECKPOINT
from service.corpus.chunk_capture import tailed
from service.model.capture_context import ChunkIds
from service.model.prompt_builder import PromptBuilder, PromptPassage, question_turns
from service.quality.cases import Case
from service.quality.exact_match import exact_match, interval
from service.quality.suites import Draw, multihop
from store.record import LayerKV, Record

LAYERS, CHECK, TIMES = (3, 4), 2, 3.0  # ask/layers=3+4/check=2/times=3
RATIOS = (0.02, 0.05, 0.1, 0.2)
RATIO = 0.05
OTHERS = 2  # texts that a chunk is captured behind, to see what it leaves open
ANSWER = 12  # tokens of the longest answer, and some
STILL = (0.001, 0.01, 0.1)  # KL of the first token from one budget to the next
ROWS = {
    "difficulty 1": Draw(1),
    "difficulty 2": Draw(2),
    "difficulty 3": Draw(3),
    "bare": Draw(2, "bare"),
    "json": Draw(2, "json"),
    "history": Draw(2, "history"),
    "reversed": Draw(2, "reversed"),
    "2 passages": Draw(2, passages=2),
    "8 passages": Draw(2, passages=8),
    "16 passages": Draw(2, passages=16),
    "1000 tokens": Draw(2, tokens=1000),
    "1000 tokens, difficulty 3": Draw(3, tokens=1000),
}


@dataclass(frozen=True, slots=True)
class Told:
    """One answer, and the log probabilities (V,) of its first token. `share`: of the cached tokens, recomputed."""

    answer: str
    first: Tensor
    share: float


@dataclass(frozen=True, slots=True)
class Scores:
    """What a choice can look at, one number for each slot of the prompt. `looked`: by the question, over the caches.

    `open`: how far the token's caches change behind other texts, known at capture. `rare`: in a word that several
    chunks, or one and the question, have, and most chunks have not.
    """

    cached: Tensor
    looked: Tensor
    open: Tensor
    rare: Tensor
    spans: tuple[ChunkSpan, ...]

    def most(self, scores: Tensor, count: int) -> Tensor:
        """A flag for each of so many cached slots that have most."""
        chosen = torch.zeros_like(self.cached)
        chosen[scores.masked_fill(~self.cached, -1).topk(min(count, int(self.cached.sum()))).indices] = True
        return chosen


def _asked(scores: Scores, count: int) -> Tensor:
    return scores.most(scores.looked, count)


def _half(scores: Scores, other: Tensor, count: int) -> Tensor:
    named = scores.most(scores.looked, count - count // 2)
    return named | scores.most(other.masked_fill(named, -1), count // 2)


def _floor(scores: Scores, count: int) -> Tensor:
    chosen = torch.zeros_like(scores.cached)
    for span in scores.spans:
        inside = scores.looked[span.start : span.stop]
        chosen[inside.topk(min(2, len(inside))).indices + span.start] = True
    return chosen | scores.most(scores.looked.masked_fill(chosen, -1), max(0, count - int(chosen.sum())))


CANDIDATES: dict[str, Callable[[Scores, int], Tensor]] = {
    "ask": _asked,
    "openness times looks": lambda scores, count: scores.most(scores.open * scores.looked, count),
    "half by openness": lambda scores, count: _half(scores, scores.open, count),
    "openness alone": lambda scores, count: scores.most(scores.open, count),
    "half rare words": lambda scores, count: _half(scores, scores.rare * scores.looked, count),
    "two of each chunk": _floor,
    "every token": lambda scores, count: scores.cached.clone(),
}


class Asker:
    """Asks one model a case in every way."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._decoder = model.decoder
        self._builder = PromptBuilder(model.tokenizer)
        self._prefix = self._builder.lay(question_turns([PromptPassage("")], question="")).prefix
        self._readers = Readers(1)
        self._before: list[tuple[int, ...]] = []  # chunks of the cases before
        self._given: tuple[int, ...] = ()
        POLICIES["given"] = self._selection

    def ask(self, case: Case) -> dict[str, Told]:
        """What each way answers, by its name."""
        layout, scores = self._laid(case)
        cached = int(scores.cached.sum())
        told = {"full": self._told(layout, "full", 0.0), "reuse": self._told(layout, "reuse", 0.0)}
        for ratio in RATIOS:
            told[f"ask {ratio:g}"] = self._chosen(layout, scores, "ask", max(4, int(np.ceil(ratio * cached))))
        count = max(4, int(np.ceil(RATIO * cached)))
        for name in CANDIDATES.keys() - {"ask"}:
            told[name] = self._chosen(layout, scores, name, count)
        best = scores.most(scores.open * scores.looked, count)
        told["openness times looks, no check"] = self._with(layout, best)
        return told | _adaptive(told)

    def _laid(self, case: Case) -> tuple[PromptLayout, Scores]:
        laid = self._builder.lay(case.turns)
        shown = [passage for passage in case.passages if passage.text]
        chunks = {
            run.passage: ChunkIds(run.ids, self._builder.gap_ids(shown[run.passage]))
            for run in laid.runs
            if run.passage is not None
        }
        texts = [chunk.all for chunk in chunks.values()]
        plain = capture(self._decoder, self._prefix, chunks=texts)
        others = (self._before or texts)[-OTHERS:]
        behind = [capture(self._decoder, (*self._prefix, *other), chunks=texts) for other in others]
        self._before = [*self._before, *texts][-OTHERS * 4 :: 4]
        fingerprint = self._model.fingerprint.behind(self._prefix)
        records = {n: tailed(record, chunks[n]) for n, record in zip(chunks, plain, strict=True)}
        prompt = laid.prompt({n: HeldRecord(record, fingerprint) for n, record in records.items()})
        layout = lay_out(
            prompt, fingerprint=fingerprint, window=self._decoder.window, vocabulary=self._decoder.vocabulary
        )
        opened = {n: _openness(plain[i], [each[i] for each in behind]) for i, n in enumerate(chunks)}
        return layout, self._scores(layout, list(opened.values()), case)

    def _scores(self, layout: PromptLayout, opened: Sequence[Tensor], case: Case) -> Scores:
        cached = torch.zeros(len(layout.ids), dtype=torch.bool)
        openness = torch.zeros(len(layout.ids))
        for span in layout.blended:
            cached[span.start : span.stop] = True
            openness[span.start : span.stop] = opened[span.chunk][: span.stop - span.start]
        return Scores(cached, self._looked(layout, cached), openness, self._rare(layout, case.question), layout.blended)

    def _looked(self, layout: PromptLayout, cached: Tensor) -> Tensor:
        context = self._context(layout, "reuse")
        last = scattered([len(layout.ids) - 1], device=self._decoder.device)
        looked = torch.zeros(len(layout.ids))
        asked = tuple(self._decoder.model_layers.keeping[each] for each in LAYERS)
        hooks = LayerHooks(asked=asked, looked=looked.add_)
        self._decoder.prefill(context, last, ids=torch.tensor(layout.ids[-1:]), hooks=hooks)
        return looked

    def _rare(self, layout: PromptLayout, question: str) -> Tensor:
        words_of: list[list[tuple[str, int, int]]] = []
        for span in layout.blended:
            starts, text = list[int](), ""
            for token in layout.ids[span.start : span.stop]:
                starts.append(len(text))
                text += self._model.tokenizer.decode([token])
            places = np.array(starts)
            words_of.append(
                [
                    (
                        found.group().lower(),
                        span.start + int(places.searchsorted(found.start(), "right")) - 1,
                        span.start + int(places.searchsorted(found.end() - 1, "right")) - 1,
                    )
                    for found in re.finditer(r"\w+", text)
                ]
            )
        known = Counter(word for words in words_of for word in {word for word, _, _ in words})
        asked = {word.lower() for word in re.findall(r"\w+", question)}
        rare = torch.zeros(len(layout.ids))
        for word, first, last in (each for words in words_of for each in words):
            if known[word] + (word in asked) >= 2 and known[word] <= max(2, len(words_of) / 2):
                rare[first : last + 1] = 1
        return rare

    def _chosen(self, layout: PromptLayout, scores: Scores, name: str, count: int) -> Told:
        named = CANDIDATES[name](scores, int(np.ceil(TIMES * count)))
        context = self._context(layout, "reuse")
        check = self._decoder.model_layers.keeping[CHECK]
        fresh = torch.tensor([place not in _slots(layout) for place in range(len(layout.ids))])
        rows = (named | fresh).nonzero()[:, 0]
        old = (context.keys(check).clone(), context.values(check).clone())
        deviation = Deviation(len(layout.ids), device=self._decoder.device)

        def compare(keys: Tensor, values: Tensor) -> None:
            inside = named[rows]
            places = rows[inside]
            was = (old[0][:, places], old[1][:, places])
            deviation.add(places, fresh=(keys[:, inside], values[:, inside]), old=was)

        slots = scattered(rows.tolist(), device=self._decoder.device)
        ids = torch.tensor(layout.ids)[rows]
        self._decoder.prefill(
            context, slots, ids=ids, layer_range=LayerRange(stop=check), hooks=LayerHooks(compare=compare)
        )
        return self._with(layout, scores.most(deviation.scores().masked_fill(~named, -1), count))

    def _with(self, layout: PromptLayout, chosen: Tensor) -> Told:
        self._given = tuple(chosen.nonzero()[:, 0].tolist())
        return self._told(layout, "given", len(self._given))

    def _selection(self, layout: PromptLayout, budget: RecomputeBudget) -> Selection:
        return Selection(layout, self._given)

    def _context(self, layout: PromptLayout, policy: str) -> Context:
        context = self._decoder.context(len(layout.ids))
        fuse(self._decoder, layout, context=context, order=BlendOrder(policy, 0.0), readers=self._readers)
        return context

    def _told(self, layout: PromptLayout, policy: str, recomputed: float) -> Told:
        tokenizer, decoder = self._model.tokenizer, self._decoder
        context = decoder.context(len(layout.ids) + ANSWER)
        fused = fuse(decoder, layout, context=context, order=BlendOrder(policy, 0.0), readers=self._readers)
        logits: Tensor | None = fused.logits
        said: list[int] = []
        while logits is not None and len(said) < ANSWER:
            said.append(int(logits.argmax()))
            if said[-1] in tokenizer.stop_ids:
                break
            slots = scattered([len(layout.ids) + len(said) - 1], device=self._decoder.device)
            logits, _ = decoder.prefill(context, slots, ids=torch.tensor(said[-1:]))
        text = tokenizer.decode(token for token in said if token not in tokenizer.stop_ids).strip()
        share = recomputed / max(1, sum(span.stop - span.start for span in layout.blended))
        return Told(text, fused.logits.log_softmax(-1), share)


def _slots(layout: PromptLayout) -> set[int]:
    return {place for span in layout.spans for place in range(span.start, span.stop)}


def _openness(plain: Record, behind: Sequence[Record]) -> Tensor:
    """(tokens,): how far each token's keys and values change behind other texts, in parts of the layer's scale."""

    def parts(layer: LayerKV) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(layer.keys).float(), torch.from_numpy(layer.values).float()

    found = torch.zeros(plain.tokens)
    for other in behind:
        for was, now in zip(plain.layers, other.layers, strict=True):
            if was is not None and now is not None:
                for a, b in zip(parts(was), parts(now), strict=True):
                    found += (b - a).square().sum((0, 2)) / a.square().sum().clamp(min=1e-9)
    return found


def _adaptive(told: Mapping[str, Told]) -> dict[str, Told]:
    steps = [told["reuse"], *(told[f"ask {ratio:g}"] for ratio in RATIOS)]
    found: dict[str, Told] = {}
    for still in STILL:
        kept = next((b for a, b in pairwise(steps) if _kl(b.first, a.first) < still), steps[-1])
        found[f"adaptive {still:g}"] = kept
    return found


def _kl(wanted: Tensor, got: Tensor) -> float:
    return float((wanted.exp() * (wanted - got)).nan_to_num().sum())


def row(model: LoadedModel, drawn: Draw, *, seed: int, size: int) -> dict[str, dict[str, object]]:
    """Each way's loss against full prefill in points with its interval, KL of the first token, and share recomputed."""
    asker = Asker(model)
    cases = multihop(seed=seed, size=size, drawn=drawn)
    told = [asker.ask(case) for case in cases]

    def right(name: str) -> np.ndarray:
        return np.array([exact_match(each[name].answer, case.answers) for each, case in zip(told, cases, strict=True)])

    found: dict[str, dict[str, object]] = {}
    for name in told[0]:
        lost = interval(right("full") - right(name))
        found[name] = {
            "loss": round(100 * float((right("full") - right(name)).mean()), 2),
            "interval": [round(100 * lost.low, 1), round(100 * lost.high, 1)],
            "kl": round(float(np.mean([_kl(each["full"].first, each[name].first) for each in told])), 4),
            "share": round(float(np.mean([each[name].share for each in told])), 4),
        }
    return {"exact match": {"full": round(100 * float(right("full").mean()), 1)}, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default=";".join(ROWS), help="names of rows, with ; between them")
    parser.add_argument("--seed", type=int, default=6007)
    parser.add_argument("--n", type=int, default=120)
    given = parser.parse_args()
    model = load(str(CHECKPOINT), dtype="float32")
    for name in given.rows.split(";"):
        size = given.n // 2 if ROWS[name].tokens else given.n
        print(json.dumps({name: row(model, ROWS[name], seed=given.seed, size=size)}), flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
