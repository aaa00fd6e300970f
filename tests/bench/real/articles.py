"""Articles out of folders of prose, and how they are cut into chunks of about so many tokens. Knows no prompts."""

import html
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

TEXTS, PAGES = "texts", "pages"  # the two corpora: files of plain text or reStructuredText, and files of HTML
SUFFIXES = {".txt": TEXTS, ".md": TEXTS, ".html": PAGES}
LANGUAGE = "en-US"  # the folder of pages, where there is one for each language

WORDS = 480  # of the shortest article
OF_PARAGRAPH = 12  # words that a paragraph has more of; titles and lists of names have fewer
HELD = 0.2  # the share of articles that no prompt asks of: fillers are made of them

_PARAGRAPH = re.compile(r"<p[ >].*?</p>|<div class=\"para\">.*?</div>", re.DOTALL)
_TITLE = re.compile(r"<title\b[^>]*>(.*?)</title>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_MARKUP = re.compile(r"\s*(\.\.|>>>|::|[=\-*^~#]{3,})")  # a directive, an example, the line below a title
_ROLE = re.compile(r":[a-z:]+:`~?!?\.?([^`<]+)[^`]*`")


@dataclass(frozen=True, slots=True)
class Article:
    """The words of a text, without markup, examples and short paragraphs."""

    title: str
    words: tuple[str, ...]
    corpus: str


class TokenCounts:
    """How many tokens words have, each by itself; so many together have about the sum."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count
        self._known: dict[str, int] = {}

    def chunks(self, article: Article, *, tokens: int) -> list[str]:
        """The article in chunks of about so many tokens; a shorter rest is left out."""
        found, words, held = list[str](), list[str](), 0
        for word in article.words:
            words.append(word)
            held += self._of(word)
            if held >= tokens:
                found.append(" ".join(words))
                words, held = [], 0
        return found

    def _of(self, word: str) -> int:
        if word not in self._known:
            self._known[word] = self._count(f" {word}")
        return self._known[word]


@dataclass(frozen=True, slots=True)
class Prose:
    """All articles of some corpora: those that prompts are made of, and those held out for what is fixed."""

    asked: tuple[Article, ...]
    held: tuple[Article, ...]

    def of(self, corpus: str) -> "Prose":
        """One corpus of it; all where none is named."""
        asked, held = ([each for each in some if corpus in ("", each.corpus)] for some in (self.asked, self.held))
        return Prose(tuple(asked), tuple(held))


def divided(articles: Iterable[Article], *, seed: int) -> Prose:
    """The articles, with some of each corpus held out, others for another seed."""
    asked, held = list[Article](), list[Article]()
    ordered = sorted(articles, key=lambda each: (each.corpus, each.title))
    for corpus in sorted({each.corpus for each in ordered}):
        some = [each for each in ordered if each.corpus == corpus]
        Random(f"{seed}/{corpus}").shuffle(some)
        count = round(HELD * len(some))
        held += some[:count]
        asked += some[count:]
    return Prose(tuple(asked), tuple(held))


def read(folder: Path) -> list[Article]:
    """The articles below a folder that are long enough. Of one title and corpus there is one."""
    root, found = folder.resolve(), dict[tuple[str, str], Article]()
    files = [path for path in sorted(root.rglob("*")) if path.suffix in SUFFIXES and not path.is_symlink()]
    languages = any(LANGUAGE in path.parts for path in files)
    for path in files:
        corpus = SUFFIXES[path.suffix]
        if corpus == PAGES and languages and LANGUAGE not in path.parts:
            continue
        raw = path.read_text(encoding="utf-8", errors="ignore")
        title, paragraphs = _page(raw, path.stem) if corpus == PAGES else (_stem(path), _text(raw))
        words = " ".join(_kept(paragraphs)).split()
        if len(words) >= WORDS:
            found.setdefault((corpus, title), Article(title, tuple(words), corpus))
    return list(found.values())


def _stem(path: Path) -> str:
    return path.stem.removesuffix(".rst")


def _page(raw: str, name: str) -> tuple[str, list[str]]:
    title = _TITLE.search(raw)
    plain = [html.unescape(_TAG.sub("", each)) for each in _PARAGRAPH.findall(raw)]
    return " ".join(html.unescape(_TAG.sub("", title[1])).split()) if title else name, plain


def _text(raw: str) -> list[str]:
    blocks = [each for each in re.split(r"\n\s*\n", raw) if not _MARKUP.match(each)]
    return [_ROLE.sub(r"\1", each).replace("``", "").replace("*", "") for each in blocks]


def _kept(paragraphs: Iterable[str]) -> list[str]:
    joined = [" ".join(each.split()) for each in paragraphs]
    return [each for each in joined if len(each.split()) > OF_PARAGRAPH and "::" not in each and "|" not in each]
