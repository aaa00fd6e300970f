"""HTML to Markdown inside a child process: navigation, scripts, pictures and lists of links are left out."""

import re

from html_to_markdown import ConversionOptions, PreprocessingOptions, convert

from retriever.readers.link_lists import without_link_lists
from retriever.readers.serve import Findings, clean, one_line

_HEAD_WITHIN = 1 << 18  # characters
_NOISE = [
    *("head", "nav", "script", "style", "template", "noscript", "svg"),
    *("[role=navigation]", "[role=contentinfo]", "[role=search]", ".sphinxsidebar", "div.related", ".headerlink"),
]
_BARE = ["a", "b", "strong", "i", "em", "u", "ins", "del", "s", "font", "abbr"]  # their text stays, their marks go
_MAIN, _MAIN_END = re.compile(r"<main[\s>]", re.IGNORECASE), re.compile(r"</main\s*>", re.IGNORECASE)
_LEAST_MAIN = 0.5  # of the page's letters: a smaller one is not all that it is about
_EMPTY = re.compile(r"<(?:noscript|template|textarea|title)(?:\s[^<>]*)?/>", re.IGNORECASE)  # XHTML's; HTML reads on
_OPENED, _CLOSED = "\ue000", "\ue001"  # around a link's text, until it is known what stands among links alone
_OPENING = re.compile(r"<a\s[^<>]{0,2000}?\bhref\b[^<>]{0,4000}>", re.IGNORECASE)
_CLOSING = re.compile(r"</a\s*>", re.IGNORECASE)
_LINK = re.compile(f"{_OPENED}([^{_OPENED}{_CLOSED}]*){_CLOSED}")
_SIGN = re.compile(f"{_OPENED}[\\s§¶#🔗↑↩︎^]*{_CLOSED}")  # of links to the heading itself, and back from a note
_MARKS = str.maketrans("", "", _OPENED + _CLOSED)

_PLAIN = PreprocessingOptions(enabled=False)  # it would also drop a page's header with its first heading

_TEXT = ConversionOptions(
    autolinks=False,
    bullets="-",
    compact_tables=True,
    exclude_selectors=_NOISE,
    extract_metadata=False,
    highlight_style="none",
    include_blockquote_citations=False,
    preprocessing=_PLAIN,
    skip_images=True,
    strip_tags=_BARE,
)
_HEAD = ConversionOptions(exclude_selectors=["body"], extract_metadata=True, preprocessing=_PLAIN)


def parse(content: bytes) -> Findings:
    """The page as Markdown, and what its <title> says. `content` is UTF-8."""
    page = content.decode("utf-8")
    text, problems = markdown_of(page)
    document = convert(_EMPTY.sub("", page[:_HEAD_WITHIN]), _HEAD).metadata.document
    title = (document.title if document else None) or ""
    return Findings((text,), problems, title=one_line(title))


def markdown_of(page: str) -> tuple[str, list[str]]:
    """The text of a page, and what of it was not read. What leads to other pages is left out where anything else is."""
    marked = _CLOSING.sub(_CLOSED, _OPENING.sub(_OPENED, _EMPTY.sub("", page).translate(_MARKS)))
    text, problems = _converted(marked)
    if (main := _MAIN.search(marked)) and (ends := [each.end() for each in _MAIN_END.finditer(marked)]):
        within, said = _converted(marked[main.start() : ends[-1]])
        if len(within) >= _LEAST_MAIN * len(text):
            text, problems = within, said
    text = _SIGN.sub("", text)
    kept = without_link_lists(text, _LINK)
    return (text if kept.isspace() or not kept else kept).translate(_MARKS), problems


def _converted(page: str) -> tuple[str, list[str]]:
    converted = convert(page, _TEXT)
    return clean(converted.content or ""), list(dict.fromkeys(_sentence(each.message) for each in converted.warnings))


def _sentence(warning: str) -> str:
    return f"not all of it was read ({warning.rstrip('.')}): save it with a flatter structure"
