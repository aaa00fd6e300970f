"""The rules of the code that ruff does not know. Reads sources as text and imports nothing of what it checks.

A rule is a function from a source file to the lines that break it.
"""

import ast
import gc
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("store", "retriever", "blend", "service", "clients")

DYNAMIC_IMPORTS = ("__import__", "import_module", "importlib.import_module")

# Optional extras are imported where they are chosen; help and completion come without torch.
DEFERRING = ("service.app.composition", "service.app.compose_truth", "service.commands", "service.lab.commands")
FILE_LINES, FUNCTION_LINES = 400, 50
PARAMETERS, POSITIONAL_PARAMETERS = 5, 2

# Lines of each package's Python; of clients without their tests. A budget falls with its package. A raise is a commit
# of its own that says what was bought.
BUDGET = {"store": 6107, "retriever": 9109, "blend": 9425, "service": 30088, "clients": 6952}

RECORDS = (
    "store.blob",
    "store.codec",
    "store.errors",
    "store.fingerprint",
    "store.key",
    "store.reader",
    "store.record",
    "store.record_source",
    "store.rows",
)  # what blend may know of store: records and how they are read, no medium
CONTRACTS = (
    "store.blob_store",
    "store.scrub",
    "store.size",
)  # what service may know besides

# Who may import what. The longest name that fits governs; what is not named is free.
IMPORTERS: dict[str, tuple[str, ...]] = {
    "service": ("service", "tests"),
    "service.lab": ("service.lab", "service.cli", "tests"),
    "retriever": ("retriever", "service", "tests"),
    "retriever.embedders.encoder": ("service.app.composition", "tests"),
    "blend": ("blend", "service", "tests"),
    "store": ("store", "service.app.composition", "tests"),
    "store.url": ("store", "service.app.composition", "service.commands", "tests"),
    "store.objects.object_client": ("store", "service.documents.corpus_objects", "tests"),
    **dict.fromkeys(RECORDS, ("store", "blend", "service", "tests")),
    **dict.fromkeys(CONTRACTS, ("store", "service", "tests")),
    "tests": ("tests",),
    "faiss": ("retriever", "tests"),
    "torch": ("blend", "retriever.embedders.encoder", "service", "clients.vllm-kvweave", "tests"),  # vLLM brings it
    "transformers": ("blend", "retriever.embedders.encoder", "service", "tests"),
    **dict.fromkeys(["pypdfium2", "rapidocr"], ("retriever.readers.parse_scan", "tests")),
    "sentence_transformers": ("retriever.embedders.encoder", "tests"),
    "vllm": ("clients.vllm-kvweave",),
    **dict.fromkeys(["lmdb", "obstore"], ("store", "tests")),
    **dict.fromkeys(["llvmlite", "numba", "triton"], ("blend.kernels", "tests")),
    "retriever.postgres": ("retriever.postgres", "service.truth.postgres", "tests"),
    **dict.fromkeys(["psycopg", "psycopg_pool"], ("retriever.postgres", "tests")),
    "service.truth.postgres": ("service.truth.postgres", "service.app.compose_truth", "service.commands", "tests"),
    **dict.fromkeys(["fastapi", "fastapi_offline", "limits", "llguidance", "starlette"], ("service", "tests")),
    **dict.fromkeys(["opentelemetry", "prometheus_client"], ("service.telemetry", "tests")),
    **dict.fromkeys(["pydantic_settings", "typer", "uvicorn"], ("service", "tests")),
    "service.telemetry.export": ("service.app.composition", "tests"),
    "service.app.ray_capture": ("service.commands", "tests"),
    "ray": ("service.app.ray_capture", "tests"),
}

# Decorators of what numba or Triton compiles, or calls while it does; what stands inside is compiled or called with it.
OF_COMPILERS = r"compiled|compiled_apart|compiled_loosely|intrinsic|overload\(.+|triton\.jit.*"

# What frameworks decide in the clients, by file and function.
_LANGCHAIN = "clients/langchain-kvweave/src/langchain_kvweave"
_OF_LANGCHAIN = (
    "chat_models.py:ChatKVWeave._agenerate",
    "chat_models.py:ChatKVWeave._astream",
    "chat_models.py:ChatKVWeave._generate",
    "chat_models.py:ChatKVWeave._stream",
    "vectorstores.py:MirroredStore.from_texts",
)
_VLLM = "clients/vllm-kvweave/src/vllm_kvweave"
_OF_VLLM = ("__init__", "save_kv_layer", "update_state_after_alloc")
_LLAMA = "clients/llama-index"
_OF_LLAMA = (
    "llms-kvweave/src/llama_index/llms/kvweave/structured.py:SchemaLLM._structured_astream_call",
    "llms-kvweave/src/llama_index/llms/kvweave/structured.py:SchemaLLM._structured_stream_call",
    "llms-kvweave/src/llama_index/llms/kvweave/structured.py:SchemaLLM.astructured_predict",
    "llms-kvweave/src/llama_index/llms/kvweave/structured.py:SchemaLLM.structured_predict",
    "llms-kvweave/src/llama_index/llms/kvweave/synthesizer.py:KVWeaveSynthesizer.__init__",
    "llms-kvweave/src/llama_index/llms/kvweave/synthesizer.py:KVWeaveSynthesizer.asynthesize",
    "llms-kvweave/src/llama_index/llms/kvweave/synthesizer.py:KVWeaveSynthesizer.synthesize",
    "retrievers-kvweave/src/llama_index/retrievers/kvweave/base.py:KVWeaveRetriever.__init__",
)

# Exceptions by rule and place ("store/blob_store.py:Store.put"), each with its reason.
EXCUSED: dict[str, dict[str, str]] = {
    "deferred_imports": {
        "blend/kernels/kernels.py:": "numba is an extra, and triton comes with torch for CUDA",
        "retriever/readers/serve.py:_answer": "a worker is told its parser, whose library is an extra",
    },
    "broad_handlers": {
        "service/documents/ordered_calls.py:_make": "whoever waits gets the exception",
        "service/documents/ingest.py:Ingest._work": "an outermost loop: it goes on, and its log says why",
        "service/documents/ingest.py:Ingest._run": "an outermost loop: the upload fails, its log says why",
        "service/api/streams.py:_lines": "a stream that has begun ends in an error; what is unforeseen goes on",
        "service/answers/pipeline.py:Pipeline.answer": "counted, and raised again",
        "blend/fuse/record_loader.py:RecordLoader._read": "an outermost loop: whoever waits gets the exception",
        "blend/engine/local_engine.py:LocalEngine._advance": "one request's sampling ends that request alone",
        "blend/engine/local_engine.py:LocalEngine._run_capture": "whoever asked gets the exception",
        "blend/engine/local_engine.py:LocalEngine._start": "what one request's fuse raises ends that request alone",
        "blend/engine/local_engine.py:LocalEngine._work": "an outermost loop: all who wait get the exception",
        "blend/engine/engine.py:PendingRequest.tell": "a listener's fault must not reach the other requests",
        "blend/engine/local_engine.py:LocalEngine._step": "an outermost loop: every request in it gets the exception",
        "store/tiers/background_queue.py:BackgroundQueue._run": "an outermost loop: its log says why",
        "retriever/readers/serve.py:serve": "an outermost loop: whoever asked gets the reason",
        f"{_VLLM}/loading.py:Loading._run": "each load ends once, or vLLM would hold its blocks for ever",
        "tests/store/test_object_store_faults.py:outcome.run": "a panic of the client is no Exception",
        "store/tiers/tiered_store.py:SingleFlight.do": "whoever waits gets the same exception as the caller",
    },
    "environment_readers": {
        "clients/vllm-kvweave/examples/openai_client.py:main": "an example shows where its addresses come from",
        "retriever/readers/worker.py:ParserWorker.__init__": "a worker's is its parent's, but for traces",
        "service/app/give_back_memory.py:keep_freed_memory": "settings of the allocator's own, of whoever made them",
        f"{_VLLM}/connector.py:KvweaveConnector.__init__": "vLLM's settings stand in its log, and a key does not",
    },
    "long_signatures": {
        "blend/run/model_layers.py:LayerProbeCache.update": "transformers decides",
        "blend/run/attention.py:attention_by.attend": "transformers decides",
        "blend/run/visibility.py:see": "transformers decides",
        "blend/run/flex_attention.py:_at_slots.sees": "torch decides",
        "blend/run/flex_attention.py:_capped.score": "torch decides",
        "blend/run/recorded_cache.py:RecordedCache.update": "transformers decides",
        "blend/run/rows_cache.py:RowsCache.update": "transformers decides",
        "blend/kernels/compiled.py:cast": "numba knows no keywords",
        "blend/kernels/cpu_rows_kernels.py:_write": "numba knows no keywords",
        "blend/kernels/cpu_place_kernel.py:_place": "numba knows no keywords",
        "service/commands/ask.py:ask": "typer makes an option of every parameter",
        "service/commands/ask.py:search": "typer makes an option of every parameter",
        "service/lab/commands/bench.py:bench": "typer makes an option of every parameter",
        "service/commands/precompute.py:precompute": "typer makes an option of every parameter",
        "service/lab/commands/evaluate.py:evaluate": "typer makes an option of every parameter",
        "service/settings.py:Settings.settings_customise_sources": "pydantic-settings decides",
        **dict.fromkeys((f"{_VLLM}/connector.py:KvweaveConnector.{name}" for name in _OF_VLLM), "vLLM decides"),
        **dict.fromkeys((f"{_LANGCHAIN}/{name}" for name in _OF_LANGCHAIN), "LangChain decides"),
        **dict.fromkeys((f"{_LLAMA}-{name}" for name in _OF_LLAMA), "LlamaIndex decides"),
    },
}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, absolute; `where` is top, typing (never executed) or deferred."""

    target: str
    where: str
    line: int


@dataclass(frozen=True, slots=True)
class Function:
    """`positional` leaves out self or cls; `others` are taken by keyword, or are *args and **kwargs."""

    name: str  # qualified by class and function around it
    node: ast.FunctionDef | ast.AsyncFunctionDef
    positional: list[ast.arg]
    others: list[ast.arg]

    @property
    def lines(self) -> range:
        return range(self.node.lineno, (self.node.end_lineno or self.node.lineno) + 1)


@dataclass(frozen=True, slots=True)
class Source:
    path: PurePosixPath  # relative to the root of the repository
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """Tests of a distribution count as tests, wherever they lie."""
        parts = self.path.with_suffix("").parts
        if parts[0] == "clients" and ("tests" in parts or parts[-1] == "conftest"):
            parts = ("tests", *parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def imports(self) -> tuple[Import, ...]:
        return _imports(self)

    def targets(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = self.path.parts[: len(self.path.parts) - node.level] if node.level else ()
            base = [*package, *([node.module] if node.module else [])]
            yield from (".".join([*base, alias.name]) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in DYNAMIC_IMPORTS and node.args:
            yield ast.unparse(node.args[0]).strip("'\"")

    def functions(self) -> tuple[Function, ...]:
        """Outer ones before the ones inside."""
        return _functions_of(self)

    def nodes(self) -> tuple[ast.AST, ...]:
        return _nodes(self)

    def place(self, line: int) -> str:
        around = [function.name for function in self.functions() if line in function.lines]
        return f"{self.path}:{around[-1] if around else ''}"


Finding = tuple[int, str]  # line and message
Rule = Callable[[Source], Iterator[Finding]]


@cache
def _nodes(source: Source) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(source.tree))


@cache
def _functions_of(source: Source) -> tuple[Function, ...]:
    return tuple(_functions(source.tree, ""))


@cache
def _imports(source: Source) -> tuple[Import, ...]:
    top = source.tree.body
    branches = [node for node in top if isinstance(node, ast.If)]
    guarded = [branch for branch in branches if ast.unparse(branch.test).endswith("TYPE_CHECKING")]
    typing = [node for branch in guarded for node in branch.body]
    found: list[Import] = []
    for node in source.nodes():
        for target in source.targets(node):
            where = "top" if node in top else "typing" if node in typing else "deferred"
            found.append(Import(target, where, getattr(node, "lineno", 0)))
    return tuple(found)


def _functions(node: ast.AST, prefix: str) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            static = any(ast.unparse(decorator) == "staticmethod" for decorator in child.decorator_list)
            receiver = isinstance(node, ast.ClassDef) and not static
            positional = [*child.args.posonlyargs, *child.args.args][1 if receiver else 0 :]
            rest = [each for each in (child.args.vararg, child.args.kwarg) if each]
            yield Function(f"{prefix}{child.name}", child, positional, [*child.args.kwonlyargs, *rest])
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if not isinstance(child, ast.expr):  # holds no definition
            yield from _functions(child, f"{prefix}{child.name}." if named else prefix)


@cache
def load(root: Path) -> tuple[Source, ...]:
    """The Python files below the product's folders and tests, in order."""
    sources: list[Source] = []
    gc.disable()  # which would look through a million nodes, again and again
    for folder in (*PRODUCT, "tests"):
        for file in sorted((root / folder).rglob("*.py")):
            path = PurePosixPath(file.relative_to(root).as_posix())
            if not any(part.startswith(".") or part == "build" for part in path.parts):
                text = file.read_text(encoding="utf-8")
                sources.append(Source(path, text, ast.parse(text, str(path))))
    gc.freeze()
    gc.enable()
    return tuple(sources)


def within(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def long_files(source: Source) -> Iterator[Finding]:
    lines = len(source.text.splitlines())
    if lines > FILE_LINES:
        yield lines, f"{lines} lines, at most {FILE_LINES}"


def long_functions(source: Source) -> Iterator[Finding]:
    for function in source.functions():
        lines = len(function.lines)
        if lines > FUNCTION_LINES:
            yield function.lines[0], f"{function.name} has {lines} lines, at most {FUNCTION_LINES}"


def import_directions(source: Source) -> Iterator[Finding]:
    for found in source.imports():
        named = max((name for name in IMPORTERS if within(found.target, (name,))), key=len, default="")
        if named and not within(source.module, IMPORTERS[named]):
            yield found.line, f"imports {found.target}, allowed in {', '.join(IMPORTERS[named])}"


def impure_records(source: Source) -> Iterator[Finding]:
    """Whoever imports a record also executes what it imports, and the packages around it."""
    if within(source.module, RECORDS) or any(within(record, (source.module,)) for record in RECORDS):
        for found in source.imports():
            ours = within(found.target, PRODUCT) and not within(found.target, RECORDS)
            if ours and found.where != "typing":
                yield found.line, f"imports {found.target}, but blend imports this file"


def broad_handlers(source: Source) -> Iterator[Finding]:
    for node in source.nodes():
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else "BaseException"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            caught = " ".join(ast.unparse(argument) for argument in node.args)
        else:
            continue
        if re.search(r"\b(Base)?Exception\b", caught):
            yield node.lineno, "catches everything; name the exceptions"


def missing_docstrings(source: Source) -> Iterator[Finding]:
    if source.tree.body and ast.get_docstring(source.tree) is None:
        yield 1, "has no docstring that says what it is and what it refuses to know"


def environment_readers(source: Source) -> Iterator[Finding]:
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    imported = [(found.line, found.target.rpartition(".")[2]) for found in source.imports()]
    used = [(node.lineno, node.attr) for node in source.nodes() if isinstance(node, ast.Attribute)]
    for line, name in (*imported, *used):
        if name in names and source.module != "service.settings":
            yield line, "only service/settings.py may touch the environment"


def deferred_imports(source: Source) -> Iterator[Finding]:
    for found in source.imports():
        if found.where == "deferred" and not within(source.module, DEFERRING):
            yield found.line, f"imports {found.target} below the top of the file"


def long_signatures(source: Source) -> Iterator[Finding]:
    """Others decide about double-underscore methods, the number of a command's options, and what is compiled."""
    inside: list[str] = []
    for function in source.functions():
        if any(re.fullmatch(OF_COMPILERS, ast.unparse(each)) for each in function.node.decorator_list):
            inside.append(function.name)
        if any(f"{function.name}.".startswith(f"{name}.") for name in inside):
            continue
        count = len(function.positional) + len(function.others)
        command = any(".command" in ast.unparse(each) for each in function.node.decorator_list)
        if re.fullmatch(r"__(?!init__)\w+__", function.node.name):
            continue
        if count > PARAMETERS and not command:
            yield function.lines[0], f"{function.name} takes {count} parameters, at most {PARAMETERS}"
        for extra in function.positional[POSITIONAL_PARAMETERS:]:
            yield function.lines[0], f"{function.name} must take {extra.arg} by keyword only"


def any_in_signatures(source: Source) -> Iterator[Finding]:
    for function in source.functions():
        annotations = [each.annotation for each in (*function.positional, *function.others)]
        for annotation in (*annotations, function.node.returns):
            if annotation and re.search(r"\bAny\b", ast.unparse(annotation)):
                yield function.lines[0], f"{function.name} has Any in its signature"


# The rules that bind all code, and those that bind the product alone.
EVERYWHERE: tuple[Rule, ...] = (long_files, long_functions, import_directions, impure_records)
EVERYWHERE += (broad_handlers, missing_docstrings)
IN_PRODUCT: tuple[Rule, ...] = (environment_readers, deferred_imports, long_signatures, any_in_signatures)
RULES = {rule.__name__: rule for rule in (*EVERYWHERE, *IN_PRODUCT)}


def broken(rule: Rule, sources: tuple[Source, ...]) -> dict[str, str]:
    """What breaks the rule, by place."""
    places: dict[str, str] = {}
    for source in sources:
        if rule in EVERYWHERE or within(source.module, PRODUCT):
            for line, message in rule(source):
                place = source.place(line)
                places[place] = f"{places.get(place, '')}\n{source.path}:{line}: {message}"
    return places
