"""The command `kvweave`: its commands gathered, and errors as one line. Loads neither torch nor a server."""

import sys

import typer

from blend.errors import BlendError
from retriever.errors import RetrieverError
from service.commands.asking import ask, search
from service.commands.backup import backup, restore
from service.commands.bench import bench
from service.commands.demo import demo
from service.commands.evaluate import evaluate
from service.commands.keys import keys
from service.commands.precompute import precompute
from service.commands.serve import serve
from service.commands.stores import gc, stats, verify
from service.errors import ServiceError
from service.settings import SettingsError
from store.errors import StoreError

app = typer.Typer(
    name="kvweave", help="A RAG chunk-cache service.", no_args_is_help=True, pretty_exceptions_enable=False
)  # fmt: skip

for command in (demo, serve, precompute, ask, search, stats, verify, gc, backup, restore, bench):
    app.command()(command)
app.command("eval")(evaluate)
app.add_typer(keys)


@app.callback()
def root() -> None:
    """Keeps the caches of document chunks, compressed and verified.

    Example: kvweave stats --store lmdb:///var/lib/kvweave
    """


def main() -> None:
    """Run the command; an expected error is one line with the remedy."""
    try:
        app()
    except (BlendError, RetrieverError, ServiceError, SettingsError, StoreError) as error:
        typer.echo(f"kvweave: {error}", err=True)
        sys.exit(2)
