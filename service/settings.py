"""All settings with defaults and bounds, from arguments, the environment (KVWEAVE_) and one optional TOML file."""

import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from blend.errors import PromptError
from blend.fuse.policy import check_policy
from store.codec.spec import Spec
from store.errors import SpecError

PREFIX = "KVWEAVE_"
CONFIG = f"{PREFIX}CONFIG"
POSTGRES = ("postgresql://", "postgres://")
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"  # the embedder where none is named: small, and suits most documents
AUTO, NONE = "auto", "none"  # the embedder: that one where its extra is installed, or words alone
BUILTIN = "builtin"  # the name of the model that comes with kvweave
FALLBACK = {"fallback": ["own"]}  # of the generator's address
OF_CLIENTS = (f"{PREFIX}BASE_URL", f"{PREFIX}API_KEY")  # where a service is, and the key for it: no settings of one


_NAME = re.compile(r"([A-Za-z0-9][\w./:@+-]{0,199})?", re.ASCII)  # none, or what fits into any path and header
_UNLIKE_URL = re.compile(r"[%?#\t\r\n]")  # characters of a path that a URL would take for something else, or leave out


class SettingsError(ValueError):
    """A setting that is unknown or malformed; the text says which, and what would do."""


@dataclass(frozen=True, slots=True)
class GeneratorAddress:
    """An OpenAI interface of vLLM, and the key for it. `model`: its name there, empty for the only one.

    `has_fallback`: whether our own engine answers where vLLM does not.
    """

    url: str
    key: str = field(default="", repr=False)
    model: str = ""
    has_fallback: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """The address in `http://key:KEY@host:port/v1?fallback=own#MODEL`. Raises ValueError with what would do."""
        parts = urlsplit(text)
        is_whole = parts.scheme in ("http", "https") and parts.hostname and parts.username in (None, "key")
        asked = parse_qs(parts.query, keep_blank_values=True)
        if not is_whole or not parts.path.rstrip("/").endswith("/v1") or asked not in ({}, FALLBACK):
            raise ValueError(
                "a generator's address is http://host:port/v1, with ?fallback=own where kvweave's own engine is to "
                "answer while it does not, with #NAME where it has several models, and with key:KEY@ before the host "
                "for its key"
            )
        host = parts.netloc.rpartition("@")[2]
        url = parts._replace(netloc=host, query="", fragment="").geturl().rstrip("/")
        return cls(url, unquote(parts.password or ""), parts.fragment, bool(asked))


def ray_address() -> str:
    """Where Ray's own variable says that its cluster is; empty where it does not."""
    return os.environ.get("RAY_ADDRESS", "")


def _home() -> Path:
    return Path.home() / ".local/share/kvweave"


def _default_store(settings: dict[str, object]) -> str:
    path = str(Path(str(settings["data"])).absolute())
    return f"lmdb://{_UNLIKE_URL.sub(lambda found: quote(found[0]), path)}/store"  # a plain path stays as it is


def _no_url(data: object) -> object:
    """A folder. What looks like a URL would be one of that name, where the service was started."""
    scheme, found, _ = str(data).partition("://")
    if found:
        raise ValueError(f"it is a folder, or a URL that begins with postgresql://, and not with {scheme}://")
    return data


def _policy(policy: str) -> str:
    try:
        check_policy(policy)
    except PromptError as error:
        raise ValueError(str(error)) from error
    return policy


def _plain_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"a name has at most 200 letters, digits and ./:@+_-, the first a letter or digit, got {name[:200]!r}: "
            "give one such as acme/assistant"
        )
    return name


def _codec(name: str) -> str:
    try:
        return Spec.parse(name).text
    except SpecError as error:
        raise ValueError(str(error)) from error


def _generator(given: object) -> object:
    return GeneratorAddress.parse(given) if isinstance(given, str) and given else given or None


class Settings(BaseSettings):
    """What can be set. Each has a sentence in docs/settings.md."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)

    data: Annotated[Path, BeforeValidator(_no_url)] = Field(
        description="folder of catalogs, keys and indexes, or URL of PostgreSQL", default_factory=_home
    )
    store: Annotated[str, Field(description="URL of the store", default_factory=_default_store)]
    host: Annotated[str, Field(description="address that the service binds", min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(description="port that the service binds", ge=0, le=65535)] = 8000
    model: Annotated[str, Field(description="hub name or folder of the model", min_length=1)] = BUILTIN
    model_name: Annotated[
        str, AfterValidator(_plain_name), Field(description="what clients see as the model's name")
    ] = ""
    device: Annotated[str, Field(description="where the model computes, such as cpu or cuda:0")] = "auto"
    dtype: Annotated[str, Field(description="what the model computes in")] = "auto"
    policy: Annotated[str, AfterValidator(_policy), Field(description="which cached tokens are recomputed")] = "ask"
    ratio: Annotated[float, Field(description="the share of cached tokens that are recomputed", ge=0, le=1)] = 0.15
    codec: Annotated[str, AfterValidator(_codec), Field(description="how the keys and values of chunks are packed")] = (
        "q4"
    )
    share: Annotated[float, Field(description="the share of requests that reuse; the others read all", ge=0, le=1)] = 1
    reuse: Annotated[
        Literal["sooner", "untried", "always"], Field(description="whether prompts are read whole where that is sooner")
    ] = "sooner"
    auth: Annotated[bool, Field(description="whether requests need a key")] = True
    embedder: Annotated[
        str,
        AfterValidator(lambda name: name or NONE),
        Field(description="folder, hub name, or URL#model of the embedder; none for search by words alone"),
    ] = AUTO
    embedder_key: Annotated[SecretStr, Field(description="key of a remote embedder")] = SecretStr("")
    reranker: Annotated[str, Field(description="URL#model of the reranker")] = ""
    reranker_key: Annotated[SecretStr, Field(description="key of the reranker")] = SecretStr("")
    generator: Annotated[
        GeneratorAddress | None,
        NoDecode,
        BeforeValidator(_generator),
        Field(description="URL of a vLLM that generates, with its key"),
    ] = None
    chunk_tokens: Annotated[int, Field(description="tokens of a chunk at most", ge=16, le=4096)] = 256
    top_k: Annotated[int, Field(description="chunks of an answer, where the request does not say", ge=0, le=100)] = 5
    kv_bytes: Annotated[
        int, Field(description="memory for the contexts of running requests and captures", ge=1 << 20)
    ] = 4 << 30
    shared_prefixes: Annotated[
        bool, Field(description="whether keys share the beginnings of prompts that are kept")
    ] = False
    capture_share: Annotated[
        float, Field(description="the share of the model's time for documents where questions never end", ge=0, lt=1)
    ] = 0.4
    weights: Annotated[
        dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]],
        Field(description="how much of the model's time a tenant gets where several want it; 1 for all others"),
    ] = Field(default_factory=dict[str, float])
    threads: Annotated[int, Field(description="threads that the model computes with; 0: as torch chooses", ge=0)] = 0
    max_requests: Annotated[int, Field(description="requests at once, the waiting ones included", ge=1)] = 128
    max_body_bytes: Annotated[int, Field(description="the largest body of a request", ge=1024)] = 64 << 20
    max_documents: Annotated[int, Field(description="documents of one request", ge=1)] = 1000
    max_question_chars: Annotated[int, Field(description="characters of a question", ge=1)] = 20_000
    stop_s: Annotated[int, Field(description="seconds to finish what runs when the service is told to stop", ge=0)] = 45
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Field(description="what is logged")] = "info"
    log_style: Annotated[Literal["text", "json"], Field(description="how it is logged")] = "text"
    traces: Annotated[str, Field(description="where OpenTelemetry traces go")] = ""

    _database: SecretStr = PrivateAttr(SecretStr(""))

    @property
    def database(self) -> str:
        """The URL of the database that keeps catalogs and keys; empty where the folder does. It may hold a password."""
        return self._database.get_secret_value()

    @property
    def shown_model(self) -> str:
        """The model's name for clients: as set, or its hub name, or its folder's own name, never where that lies."""
        is_folder = self.model != BUILTIN and Path(self.model).exists()
        return self.model_name or (Path(self.model).absolute().name if is_folder else self.model)

    @model_validator(mode="wrap")
    @classmethod
    def _placed(cls, given: dict[str, object], handler: ModelWrapValidatorHandler[Self]) -> Self:
        """A URL as `data` names the database, and behind # the folder of what this machine may lose."""
        url, _, folder = str(given.get("data", "")).partition("#")
        if not url.startswith(POSTGRES):
            return handler(given)
        made = handler({**given, "data": Path(folder) if folder else _home()})
        made._database = SecretStr(url)
        return made

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then the file."""
        file = os.environ.get(CONFIG)
        return init_settings, env_settings, *([TomlConfigSettingsSource(settings_cls, file)] if file else [])


def load_settings(**given: object) -> Settings:
    """The settings in force, with those that a command line gives; raises `SettingsError` with what mends it."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | {CONFIG}
    unknown = sorted({name for name in os.environ if name.startswith(PREFIX)} - known - {*OF_CLIENTS})
    if unknown:
        raise SettingsError(f"unknown setting {unknown[0]}: {_instead(unknown[0], known)}")
    file = os.environ.get(CONFIG)
    if file and not Path(file).is_file():
        raise SettingsError(f"{CONFIG} names {file}, which is no file")
    try:
        return Settings(**given)  # pyright: ignore[reportCallIssue, reportArgumentType] (its fields come from the sources)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} is not valid TOML in UTF-8: {error}") from None
    except ValidationError as error:
        wrong = [each for each in error.errors() if each["type"] != "default_factory_not_called"]  # follows from others
        raise SettingsError("; ".join(_sentence(each["loc"], each["msg"]) for each in wrong)) from None


def origins() -> dict[str, str]:
    """Where each setting in force comes from: its variable, the file, or nowhere where it is the default."""
    file = os.environ.get(CONFIG, "")
    written = tomllib.loads(Path(file).read_text("utf-8")) if file else {}
    variables = {name.partition("__")[0] for name in os.environ}
    return {
        name: variable if (variable := f"{PREFIX}{name.upper()}") in variables else file if name in written else ""
        for name in Settings.model_fields
    }


def _sentence(place: Iterable[int | str], message: str) -> str:
    name = ".".join(str(part) for part in place)
    if name.partition(".")[0] not in Settings.model_fields:
        return f"unknown setting {name!r}: {_instead(name, Settings.model_fields)}"
    return f"{name} ({PREFIX}{name.upper()}): {message.removeprefix('Value error, ')}"


def _instead(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known := sorted(known), n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
