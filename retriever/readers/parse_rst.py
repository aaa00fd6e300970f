# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportArgumentType=false
"""reStructuredText to Markdown inside a child process, by docutils; what only Sphinx knows keeps its words."""

import re
from collections import defaultdict
from collections.abc import Callable
from typing import ClassVar, cast

from docutils import nodes
from docutils.core import publish_doctree, publish_from_doctree
from docutils.parsers.rst import Directive, directives, roles

from retriever.readers.parse_html import markdown_of
from retriever.readers.serve import Findings, one_line

_SETTINGS = {
    "_disable_config": True,
    "embed_stylesheet": False,
    "file_insertion_enabled": False,
    "halt_level": 5,
    "line_length_limit": 1 << 30,
    "math_output": "LaTeX",
    "output_encoding": "unicode",
    "raw_enabled": False,
    "report_level": 3,  # what an error keeps from being read stands in its message
    "stylesheet_path": "",
    "syntax_highlight": "none",
    "warning_stream": False,
}
_UNTOLD = {  # of these nothing is for readers
    *("contents", "currentmodule", "highlight", "include", "index", "literalinclude", "only", "raw", "toctree"),
}
_WORDS = {"ref", "doc", "term", "abbr", "numref", "guilabel", "menuselection"}  # roles whose text is no code
_TARGET = re.compile(r"\s*<[^<>]*>$")

known_directive, known_role = directives.directive, roles.role


def parse(content: bytes) -> Findings:
    """The text. Nothing is included from other files, and what only Sphinx knows keeps its words."""
    directives.directive, roles.role = _directive, _role
    tree = cast(nodes.document, publish_doctree(content.decode("utf-8"), settings_overrides=_SETTINGS))
    tree.transform_messages.clear()  # they would become a section at the end
    for message in [*tree.findall(nodes.system_message)]:
        message.parent.replace(message, [*message.findall(nodes.literal_block)])
    for unread in [*tree.findall(nodes.problematic)]:
        unread.parent.replace(unread, nodes.Text(unread.astext()))
    page = cast(str, publish_from_doctree(tree, writer="html5", settings_overrides=_SETTINGS))
    text, problems = markdown_of(page)
    return Findings((text,), problems, title=one_line(tree.get("title", "")))


class _Unknown(Directive):
    """A directive of somebody's own: what it is given, and what stands in it."""

    optional_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[dict[str, Callable[[str], object]] | None] = defaultdict(lambda: directives.unchanged)
    has_content = True

    def run(self) -> list[nodes.Node]:
        if self.name in _UNTOLD and self.name != "only":
            return []
        inner = nodes.container()
        given = " ".join(self.arguments)
        if given and ":" in self.name:  # the name of something that is described, in a domain
            inner += nodes.paragraph("", "", nodes.literal(given, given))
        elif given and self.name not in _UNTOLD:
            parsed, said = self.state.inline_text(f"{self.name}: {given}", self.lineno)
            inner += nodes.paragraph("", "", *parsed, *said)
        self.state.nested_parse(self.content, self.content_offset, inner, match_titles=True)
        return [inner]


def _directive(name: str, *context: object) -> tuple[type[Directive], list[nodes.system_message]]:
    """The directive that docutils knows, with options of all kinds, or one that keeps its words."""
    found, _ = known_directive(name, *context)
    if found is None or name in _UNTOLD:
        return _Unknown, []
    allowed = defaultdict(lambda: directives.unchanged, found.option_spec or {})
    return type(found.__name__, (found,), {"option_spec": allowed}), []


def _role(name: str, *context: object) -> tuple[object, list[nodes.system_message]]:
    found, _ = known_role(name, *context)
    return found or _unknown_role, []


def _unknown_role(
    name: str, source: str, *given: object, **_: object
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """A role of somebody's own: its text, without the target that it names."""
    text = str(given[0])
    told = _TARGET.sub("", nodes.unescape(text)) or text
    if told.startswith("~"):
        told = told.rpartition(".")[2].lstrip("~")
    told = told.lstrip("!")
    return [nodes.inline(source, told) if name.lower() in _WORDS else nodes.literal(source, told)], []
