"""HTML to Markdown inside a child process. Knows no file."""

from html_to_markdown import ConversionOptions, PreprocessingOptions, convert

from retriever.readers.serve import Findings, clean, one_line

_HEAD_WITHIN = 1 << 18  # characters
_NOISE = ["head", "nav", "script", "style", "template", "noscript", "svg"]
_BARE = ["a", "b", "strong", "i", "em", "u", "ins", "del", "s", "font", "abbr"]  # their text stays, their marks go
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
    document = convert(page[:_HEAD_WITHIN], _HEAD).metadata.document
    title = (document.title if document else None) or ""
    return Findings((text,), problems, title=one_line(title))


def markdown_of(page: str) -> tuple[str, list[str]]:
    """The text of a page, and what of it was not read."""
    converted = convert(page, _TEXT)
    return clean(converted.content or ""), list(dict.fromkeys(_sentence(each.message) for each in converted.warnings))


def _sentence(warning: str) -> str:
    return f"not all of it was read ({warning.rstrip('.')}): save it with a flatter structure"
