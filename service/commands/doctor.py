"""The commands `kvweave config` (settings in force, no secrets) and `doctor` (checks before a start, models served)."""

import json
import os
import platform
import re
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Column

from service.commands.console import console, many, plain_table, size, status, tell
from service.commands.errors import expected, sentence
from service.commands.options import AsJson, ModelName, settings_with
from service.commands.serve import bound

if TYPE_CHECKING:
    from service.settings import Settings

WELL, NOTE, FAILS = "ok", "note", "fails"
SCARCE = 1 << 30  # bytes on a disk, below which a first corpus does not fit
LIBRARIES = ("kvweave", "torch", "transformers", "lmdb", "faiss-cpu", "zstandard")
EXTRAS = {"triton": "kernels for a GPU", "sentence-transformers": "embedders", "ray": "corpora on many machines"}
SECRET = re.compile(r"(?<=:)[^:/@]+(?=@)|(?:(?<=_key=)|(?<=_token=)|(?<=password=))[^&|#]+")  # of URLs


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: `state` is ok, a note of what could be better, or a failure; the text holds the remedy."""

    what: str
    state: str
    text: str


class Noted(Exception):
    """Something that works, and could be better. The text says how."""


def config(*, as_json: AsJson = False) -> None:
    """Show every setting with its value in force and where that comes from: a variable, the TOML file, or the default.

    Keys and passwords are not shown.

    Examples:
      kvweave config
      KVWEAVE_CONFIG=kvweave.toml kvweave config --json
    """
    from service.settings import load_settings, origins

    places, shown = origins(), _shown(load_settings())
    rows = [{"setting": name, "value": value, "from": places[name] or "default"} for name, value in shown.items()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = plain_table(*(Column(name, overflow="fold") for name in ("setting", "value", "from")))
    for row in rows:
        value = row["value"] if isinstance(row["value"], str) else json.dumps(row["value"])
        table.add_row(str(row["setting"]), escape(value), escape(str(row["from"])))
    console().print(table)


def _shown(settings: "Settings") -> dict[str, object]:
    """The values of all settings, without what is secret in them."""
    shown: dict[str, object] = settings.model_dump(mode="json", exclude={"generator"})
    if settings.database:
        shown["data"] = f"{settings.database}#{settings.data}"
    if generator := settings.generator:
        shown["generator"] = f"{generator.url}{'?fallback=own' * generator.has_fallback}#{generator.model}".strip("#")
    return {name: SECRET.sub("*****", value) if isinstance(value, str) else value for name, value in shown.items()}


def doctor(
    *,
    model: ModelName = "",
    quick: Annotated[bool, typer.Option("--quick", help="Leave model and embedder unloaded.")] = False,
    decoders: Annotated[
        bool, typer.Option("--decoders", help="Tell which kinds of models are served, instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check what a service needs, as the settings have it: versions, device, data folder, store, port, model, embedder.

    The model is loaded and checked as `serve` does it, so it needs as much memory. Exits with 1 if something fails.

    Examples:
      kvweave doctor
      kvweave doctor --model ./my-model
      kvweave doctor --quick --json
      kvweave doctor --decoders
    """
    if decoders:
        _show_decoders(as_json=as_json)
        return
    settings, found = settings_with(model), list[Finding]()
    loads = {} if quick else {"model": _model, "embedder": _embedder}
    checks = {"versions": _versions, "device": _device, "data": _data, "store": _store, "port": _port, **loads}
    with status("checking") as show:
        for what, check in checks.items():
            show(f"checking {what}")
            found.append(_finding(what, partial(check, settings)))
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
    for each in () if as_json else found:
        tell(f"{each.state:<6}{each.what:<10}{each.text}")
    raise typer.Exit(any(each.state == FAILS for each in found))


def _show_decoders(*, as_json: bool) -> None:
    """Tells what `load` said of each decoder of transformers, by the `model_type` in a checkpoint's config.json."""
    _, _, *lines = files("blend.adopt").joinpath("decoders.md").read_text("utf-8").splitlines()
    told = [line.strip("| ").replace("`", "").split(" | ") for line in lines]
    if as_json:
        typer.echo(json.dumps([{"it is": kind, "model_type": names.split(", ")} for kind, names in told], indent=2))
        return
    table = plain_table(*(Column(name, overflow="fold") for name in ("it is", "model_type")))
    for kind, names in told:
        table.add_row(kind, names)
    console().print(table)


def _finding(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(what, WELL, check())
    except Noted as note:
        return Finding(what, NOTE, str(note))
    except expected() as error:
        return Finding(what, FAILS, sentence(error))


def _versions(settings: "Settings") -> str:
    there = [f"{name} {version(name)}" for name in LIBRARIES]
    for name, serves in EXTRAS.items():
        try:
            there.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            there.append(f"no {name} ({serves})")
    return f"Python {platform.python_version()}, {', '.join(there)}"


def _device(settings: "Settings") -> str:
    import torch

    from blend.adopt.load import device_named, multiplies_bfloat16

    device = device_named(settings.device)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return f"{device}: {torch.cuda.get_device_name(device)}, {size(free)} of {size(total)} free"
    narrow = "with" if multiplies_bfloat16() else "without"
    return f"{device}: {many(os.cpu_count() or 1, 'processor')}, {narrow} instructions for bfloat16"


def _data(settings: "Settings") -> str:
    from service.app.compose_truth import compose_truth

    if settings.database:
        with closing(compose_truth(settings)) as truth:
            return f"PostgreSQL answers and holds {many(len(truth.tenants()), 'tenant')}"
    made = next(each for each in (settings.data, *settings.data.absolute().parents) if each.exists())
    if not os.access(made, os.W_OK | os.X_OK):
        raise PermissionError(13, os.strerror(13), str(made))
    free = shutil.disk_usage(made).free
    if free < SCARCE:
        raise Noted(f"{settings.data}: only {size(free)} are free there: free some, or name another folder")
    return f"{settings.data}{'' if settings.data.exists() else ' (made at the first start)'}: {size(free)} free"


def _store(settings: "Settings") -> str:
    from service.app.composition import compose_store

    if "store" not in settings.model_fields_set and not settings.data.exists():
        return f"{settings.store} (made at the first start)"
    with closing(compose_store(settings)) as store:
        tiers = [f"{row.tier} holds {many(row.blobs, 'blob')}, {size(row.nbytes)}" for row in store.usage()]
    return "; ".join(tiers)


def _port(settings: "Settings") -> str:
    with suppress(OSError, UnicodeError), socket.create_connection((settings.host, settings.port), timeout=1):
        raise Noted(f"{settings.host} port {settings.port} is taken: a service runs there, or choose another --port")
    with bound(settings.host, settings.port):
        return f"{settings.host} port {settings.port} is free"


def _model(settings: "Settings") -> str:
    from service.app.composition import compose_model

    start = time.perf_counter()
    loaded = compose_model(settings)
    took, decoder = time.perf_counter() - start, loaded.decoder
    layers = decoder.model_layers
    states = (
        f"; {len(layers.states)} of its {len(layers.shapes)} layers keep one state of all tokens "
        f"({size(layers.state_bytes)} a request), which nothing stored replaces: it reuses prefixes "
        "alone until `kvweave eval --save auto` chose more"
        if layers.states
        else ""
    )
    return (
        f"{settings.model}: loads and passes its checks in {took:.0f} s; a window of {decoder.window:,} tokens, "
        f"{size(decoder.token_bytes)} a token in memory{states}"
    )


def _embedder(settings: "Settings") -> str:
    from retriever.errors import EmbeddingError
    from service.app.composition import compose_embedder, embedder_source
    from service.settings import AUTO, SettingsError

    try:
        embedder = compose_embedder(settings)
    except (SettingsError, EmbeddingError) as error:
        if settings.embedder == AUTO:
            raise Noted(f"search is by words alone, and a service tries again: {error}") from None
        raise
    if embedder is None:
        remedy = "install `kvweave[embedder]`" if settings.embedder == AUTO else f"KVWEAVE_EMBEDDER={AUTO} adds meaning"
        raise Noted(f"none, so search is by words alone: {remedy}")
    named = embedder_source(settings) or settings.embedder
    return f"{named}: vectors of {len(embedder.query('a sentence'))} numbers"
