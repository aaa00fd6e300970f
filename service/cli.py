"""The command `kvweave`: its commands in groups, exit codes, failures as one line. Loads neither torch nor a server."""

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from service.commands import pages
from service.commands.ask import ask, search
from service.commands.backup import backup, migrate, restore
from service.commands.console import tell
from service.commands.doctor import config, doctor
from service.commands.errors import expected, sentence, usage
from service.commands.keys import keys
from service.commands.precompute import precompute
from service.commands.serve import serve
from service.commands.stores import gc, stats, verify
from service.lab.commands.bench import bench
from service.lab.commands.demo import demo
from service.lab.commands.evaluate import evaluate

STOPPED = 130  # by Ctrl-C
GROUPS = {
    "Start": (demo, serve, doctor, config),
    "Corpus": (precompute,),
    "Ask a running service": (ask, search),
    "Store": (stats, verify, gc),
    "Keys and backups": (backup, restore, migrate),
}
END = """
Begin with:
  kvweave demo
  kvweave COMMAND --help

Exit codes:
  0    done
  1    done, but a file, a blob or an answer failed
  2    it could not be done; one line says why
  130  stopped by Ctrl-C, 143 by SIGTERM

Settings come from variables such as KVWEAVE_DATA and KVWEAVE_MODEL, or from the TOML file that KVWEAVE_CONFIG names.
"""

app = typer.Typer(name="kvweave", cls=pages.Contents, no_args_is_help=True, pretty_exceptions_enable=False, epilog=END)

for group, commands in GROUPS.items():
    for command in commands:
        pages.command(app, group=group)(command)
app.add_typer(keys, rich_help_panel="Keys and backups")
pages.command(app, "eval", group="Measure")(evaluate)
pages.command(app, group="Measure")(bench)


@contextmanager
def _ended_in_order() -> Generator[None]:
    """An operator's stop unwinds as Ctrl-C does, so that nothing half done stays. What nohup ignores stays ignored."""

    def stop(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    deadly = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    for number in deadly:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in deadly:
            signal.signal(number, signal.SIG_DFL)


@app.callback()
def root(
    context: typer.Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=pages.tell_version)
    ] = False,
) -> None:
    """Answer questions over your documents with a language model, sooner: what it computes for each chunk of text is
    kept, compressed and verified, and fused into every prompt that needs it.
    """
    context.with_resource(_ended_in_order())


def main() -> None:
    """Run the command. What cannot be done is one line with the remedy; a traceback is a fault of this code."""
    if reconfigure := getattr(sys.stdout, "reconfigure", None):  # no letter stops an answer, as on standard error
        reconfigure(errors="backslashreplace")
    try:
        code = app(prog_name="kvweave", standalone_mode=False)
    except SystemExit:  # of a completion; what is expected need not be known
        raise
    except (KeyboardInterrupt, typer.Abort):
        code = STOPPED
    except typer.TyperException as error:
        code = _report(usage(error))
    except expected() as error:
        code = _report(sentence(error))
    sys.exit(code or 0)


def _report(line: str) -> int:
    if line:
        tell(f"kvweave: {line}", err=True)
    return 2
