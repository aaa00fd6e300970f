# The types of the commands' options are private to typer:
# pyright: reportPrivateUsage=false
"""What tells about the commands: help pages with their examples, and the version. Knows no command."""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc
from typing import TYPE_CHECKING

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

if TYPE_CHECKING:
    from typer._click import Context
    from typer._click.core import Parameter

Command = Callable[..., None]

EXAMPLES = "Examples:\n"


class HelpPage(TyperCommand):
    """A command whose flags are shown without a type: they take no value."""

    def get_params(self, ctx: Context) -> list[Parameter]:
        return _bare(super().get_params(ctx))


class Contents(TyperGroup):
    """A group of commands, whose flags are shown without a type too."""

    def get_params(self, ctx: Context) -> list[Parameter]:
        return _bare(super().get_params(ctx))


def _bare(params: list[Parameter]) -> list[Parameter]:
    for each in params:
        if isinstance(each, TyperOption) and each.is_bool_flag:
            each.metavar = ""
    return params


def command(app: typer.Typer, name: str | None = None, *, group: str | None = None) -> Callable[[Command], Command]:
    """Add a command. Its examples stand at the end of its docstring, whole on lines of their own."""

    def add(function: Command) -> Command:
        text, heading, examples = cleandoc(function.__doc__ or "").partition(EXAMPLES)
        paragraphs = [" ".join(each.split()) for each in text.strip().split("\n\n")]
        app.command(
            name,
            cls=HelpPage,
            help="\n\n".join(paragraphs),
            short_help=paragraphs[0].partition(". ")[0].removesuffix(".") + ".",
            epilog=f"\n{heading}{examples}" if heading else None,  # what it begins with keeps the examples indented
            rich_help_panel=group,
        )(function)
        return function

    return add


def tell_version(*, value: bool) -> None:
    """Prints the version and exits; its option calls this."""
    if value:
        from importlib.metadata import version

        typer.echo(f"kvweave {version('kvweave')}")
        raise typer.Exit
