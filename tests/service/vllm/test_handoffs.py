"""Prompts that are put in place for others: what is fetched, by whom, and until when."""

from __future__ import annotations

import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel

from blend.engine.engine import PlacedPrompt
from blend.run.context import Context, LayerShape, Segment, places, span
from service.access.principal import Principal, Role
from service.builtin import CHECKPOINT
from service.vllm.handoff import Handoff
from service.vllm.handoffs import HandoffReaders, Handoffs, Lease
from service.vllm.shared_memory import FOLDER, PREFIX, sweep_shared_memory
from tests.service.serving import Inside, Json, ask, good, in_process, put_in, settings_in, wait_for
from tests.service.vllm.conftest import LETTERS, QUESTION
from vllm_kvweave.loading import mapped_prompt


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    letters = [{**each, "metadata": {"t": team}} for each, team in zip(LETTERS, "ab", strict=True)]
    with in_process(settings_in(tmp_path_factory.mktemp("service")), documents=letters) as inside:
        yield inside


@pytest.fixture
def client(inside: Inside) -> Iterator[httpx.Client]:
    with inside.client() as client:
        yield client


@pytest.fixture(scope="module")
def stock() -> PreTrainedModel:
    """The model as transformers has it, without any of our code."""
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()


def fuse(client: httpx.Client, **more: object) -> Json:
    return good(client.post("/v1/fuse", json={"question": QUESTION, **more}))


def fetch(client: httpx.Client, handle: str) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values (H, T, D) by layer, as two workers that share the heads fetch them, in two stretches."""
    form = good(client.get(f"/v1/handoffs/{handle}"))
    found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    count = form["tokens"] - 1
    for layer in form["layers"]:
        heads, dim = layer["key_heads"], layer["key_dim"]
        both = torch.zeros(2, count, heads, dim)
        for start, stop in ((0, 7), (7, count)):
            for rank in range(2):
                part = {"start": start, "stop": stop, "rank": rank, "ranks": 2}
                response = client.get(f"/v1/handoffs/{handle}/layers/{layer['index']}", params=part)
                assert response.status_code == 200, response.text
                assert int(response.headers["x-crc32"]) == zlib.crc32(response.content)
                cut = np.frombuffer(response.content, np.float32).reshape(2, stop - start, heads // 2, dim)
                both[:, start:stop, rank * heads // 2 : (rank + 1) * heads // 2] = torch.from_numpy(cut.copy())
        found[layer["index"]] = (both[0].transpose(0, 1), both[1].transpose(0, 1))
    return found


@torch.inference_mode()
def gone_on_with(model: PreTrainedModel, ids: list[int], layers: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> str:
    """The greedy answer that transformers gives behind these keys and values."""
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    cache = DynamicCache(config=model.config)
    for index, (keys, values) in sorted(layers.items()):
        cache.update(keys[None], values[None], index)
    answer, last = list[int](), ids[-1]
    while len(answer) < 20:
        logits = model(torch.tensor([[last]]), past_key_values=cache, use_cache=True).logits
        last = int(logits[0, -1].argmax())
        if last == tokenizer.eos_token_id:
            break
        answer.append(last)
    return tokenizer.decode(answer)


@pytest.mark.parametrize("policy", ["full", "reuse", "hybrid"])
def test_what_is_fetched_goes_on_elsewhere_as_it_does_here(
    client: httpx.Client, stock: PreTrainedModel, policy: str
) -> None:
    blend = {"policy": policy}
    here = ask(client, QUESTION, blend=blend)
    given = fuse(client, blend=blend)
    layers = fetch(client, given["handle"])
    assert gone_on_with(stock, given["ids"], layers).strip() == here["answer"].strip()
    assert given["sources"] == here["sources"]
    assert given["usage"]["reused_tokens"] == here["usage"]["reused_tokens"]
    assert given["kv_transfer_params"]["kvweave"]["tokens"] == len(given["ids"])
    if policy == "reuse":  # these are the approximate ones, and not what a prefill would give
        exact = fetch(client, fuse(client, blend={"policy": "full"})["handle"])
        assert not torch.allclose(layers[5][0], exact[5][0], atol=1e-3)


def test_salts_and_handles_are_new_each_time(client: httpx.Client) -> None:
    one, other = fuse(client), fuse(client)
    assert one["handle"] != other["handle"] and one["salt"] != other["salt"]
    assert min(len(one["salt"]), len(one["handle"])) >= 32


def test_a_handle_is_no_password(inside: Inside, client: httpx.Client) -> None:
    control = inside.core.control
    bound = {"t": "a"}
    keys = {
        "same tenant": control.create_key("default", Role.READ)[1],
        "bound": control.create_key("default", Role.READ, bound=bound)[1],
        "foreign": control.create_key("foreign", Role.ADMIN)[1],
        "foreign vLLM": control.create_key("foreign", Role.FETCH)[1],
        "bound vLLM": control.create_key("default", Role.FETCH, bound={"t": "b"})[1],
        "unknown": "kvw_unknown",
    }
    handle = fuse(client)["handle"]
    with inside.client(keys["bound"]) as asking:
        of_bound = fuse(asking)["handle"]
    seen: dict[str, list[int]] = {}
    for name, key in keys.items():
        with inside.client(key) as asking:
            paths = [f"/v1/handoffs/{each}" for each in (handle, of_bound)]
            layers = [f"{path}/layers/0?start=0&stop=3" for path in paths]
            seen[name] = [asking.get(path).status_code for path in (*paths, *layers)]
            if name != "same tenant":
                seen[name].append(asking.delete(paths[0]).status_code)
    assert seen == {
        "same tenant": [200, 404, 200, 404],
        "bound": [404, 200, 404, 200, 404],
        "foreign": [404, 404, 404, 404, 404],
        "foreign vLLM": [404, 404, 404, 404, 404],
        "bound vLLM": [404, 404, 404, 404, 404],
        "unknown": [401, 401, 401, 401, 401],
    }
    for key in (inside.key, control.create_key("default", Role.FETCH)[1]):
        with inside.client(key) as asking:
            assert asking.get(f"/v1/handoffs/{of_bound}").status_code == 200, "operators and their vLLM fetch for all"


def test_a_released_handle_is_gone_with_its_memory(inside: Inside, client: httpx.Client) -> None:
    handoffs = inside.core.handoffs
    handle, before = fuse(client)["handle"], handoffs.nbytes
    assert client.delete(f"/v1/handoffs/{handle}").status_code == 204
    assert handoffs.nbytes < before
    assert client.get(f"/v1/handoffs/{handle}").status_code == 404
    assert client.delete(f"/v1/handoffs/{handle}").status_code == 404


def test_a_deleted_document_is_in_no_handle(inside: Inside, client: httpx.Client) -> None:
    put_in(client, [{"id": "short-lived", "text": "Corina keeps a heron. Corina lives in K9."}])
    handle = fuse(client)["handle"]
    assert client.delete("/v1/documents/short-lived").is_success
    assert client.get(f"/v1/handoffs/{handle}").status_code == 404
    assert inside.core.handoffs.nbytes == 0


def test_what_is_not_there_is_not_found(client: httpx.Client) -> None:
    given = fuse(client)
    path = f"/v1/handoffs/{given['handle']}/layers"
    count = len(given["ids"]) - 1
    absent = (f"99?start=0&stop={count}", f"0?start=0&stop={count + 1}", f"0?start={count}&stop={count + 5}")
    for part in (*absent, "0?start=3&stop=3", "0?start=0&stop=3&rank=2&ranks=2"):
        assert client.get(f"{path}/{part}").status_code == 404
    for part in ("0?start=-1&stop=2", "0?start=0&stop=3&ranks=0", "0"):
        assert client.get(f"{path}/{part}").status_code == 422


def test_a_lease_ends_by_itself_and_room_is_bounded(inside: Inside, client: httpx.Client) -> None:
    handoffs = inside.core.handoffs
    one = fuse(client)
    nbytes = handoffs.get(one["handle"], _operator(inside)).nbytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handoffs, "_limit_bytes", handoffs.nbytes + 1)
        full = client.post("/v1/fuse", json={"question": QUESTION})
        assert full.status_code == 429 and "wait to be fetched" in full.json()["detail"]
        assert files_open() == len(handoffs), "what found no room leaves no file"
    brief = Handoffs(1 << 30, lease_s=0.05)
    lease = brief.add(handoffs.get(one["handle"], _operator(inside)), HandoffReaders("default", time.monotonic()))
    assert lease.handoff.nbytes == nbytes
    wait_for(lambda: brief.nbytes == 0, "the lease is over")
    brief.close()


def test_a_prompt_whose_documents_were_deleted_meanwhile_is_not_kept(inside: Inside, client: httpx.Client) -> None:
    handoffs = Handoffs(1 << 30)
    handoff = inside.core.handoffs.get(fuse(client)["handle"], _operator(inside))
    readers = HandoffReaders("default", time.monotonic())
    handoffs.void("default")
    handoffs.add(handoff, readers)
    assert len(handoffs) == 0
    handoffs.close()


SHAPES = [LayerShape(2, 3, 2, 3), None, LayerShape(2, 3, 2, 3)]


def files_open() -> int:
    """How many files of shared memory this process has."""
    places = {str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()}
    return sum(each.startswith(str(FOLDER / PREFIX)) and not each.endswith("(deleted)") for each in places)


def test_a_layer_that_cannot_be_copied_voids_its_prompt(inside: Inside, client: httpx.Client) -> None:
    lease, context = begun(inside)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.posix_fallocate", lambda *given: (_ for _ in ()).throw(OSError("no room")))
        inside.core.handoffs.put(lease, 0, pair=context.seen(0, 8))
        assert client.get(f"/v1/handoffs/{lease.handle}/layers/0?start=0&stop=8").status_code == 404
    assert not (FOLDER / lease.handoff.name).exists()


def begun(inside: Inside) -> tuple[Lease, Context]:
    """A prompt of which no layer is there yet."""
    context = Context(SHAPES, capacity=9, dtype=torch.float32, device=torch.device("cpu"))
    for layer in context.layers:
        shape = context.keys(layer).shape
        [place] = places([Segment(context, span(0, 9, device=torch.device("cpu")), 0)])
        place.write(layer, torch.rand(shape), values=torch.rand(shape))
    handoff = Handoff(PlacedPrompt(tuple(range(9)), context))
    return inside.core.handoffs.add(handoff, HandoffReaders("default", time.monotonic())), context


def test_a_layer_that_is_not_final_is_waited_for(inside: Inside, client: httpx.Client) -> None:
    handoffs, (lease, context) = inside.core.handoffs, begun(inside)
    path = f"/v1/handoffs/{lease.handle}/layers"
    assert good(client.get(f"/v1/handoffs/{lease.handle}"))["tokens"] == 9
    with ThreadPoolExecutor(2) as pool, inside.client() as other:
        first = pool.submit(client.get, f"{path}/0?start=0&stop=8")
        last = pool.submit(other.get, f"{path}/2?start=2&stop=8&rank=1&ranks=2")
        handoffs.put(lease, 0, pair=context.seen(0, 8))
        both = torch.stack(context.seen(0, 8)).transpose(1, 2)
        assert np.array_equal(np.frombuffer(first.result(30).content, np.float32), both.flatten().numpy())
        assert not last.done()
        handoffs.put(lease, 2, pair=context.seen(2, 8))
        both = torch.stack(context.seen(2, 8)).transpose(1, 2)[:, 2:, 1:]
        assert np.array_equal(np.frombuffer(last.result(30).content, np.float32), both.flatten().numpy())
    assert lease.was_fetched
    handoffs.drop(lease.handle)


def test_who_waits_for_a_layer_hears_that_it_will_not_come(inside: Inside, client: httpx.Client) -> None:
    handoffs = inside.core.handoffs
    with ThreadPoolExecutor(1) as pool:
        for is_deleted in (True, False):
            lease, context = begun(inside)
            waiting = pool.submit(client.get, f"/v1/handoffs/{lease.handle}/layers/2?start=0&stop=8")
            handoffs.put(lease, 0, pair=context.seen(0, 8))
            assert client.get(f"/v1/handoffs/{lease.handle}/layers/0?start=0&stop=8").is_success
            handoffs.void("default") if is_deleted else handoffs.drop(lease.handle)
            assert waiting.result(30).status_code == 404
            assert not lease.was_fetched
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handoffs, "lease_s", 0.2)
        lease, _ = begun(inside)
        assert client.get(f"/v1/handoffs/{lease.handle}/layers/2?start=0&stop=8").status_code == 404


def test_a_prompt_lies_in_memory_that_this_user_maps_until_it_is_let_go(inside: Inside, client: httpx.Client) -> None:
    given = fuse(client)
    form = good(client.get(f"/v1/handoffs/{given['handle']}?final=12"))
    assert form["final"] == len(form["layers"]) == 12
    path = FOLDER / form["shared"]
    assert path.stat().st_mode & 0o777 == 0o600
    memory = mapped_prompt(form["shared"], path.stat().st_size)
    assert memory is not None
    parts = [
        client.get(f"/v1/handoffs/{given['handle']}/layers/{n}?start=0&stop={form['tokens'] - 1}").content
        for n in range(12)
    ]
    assert bytes(memory) == b"".join(parts)
    client.delete(f"/v1/handoffs/{given['handle']}")
    assert not path.exists() and bytes(memory) == b"".join(parts), "who has it mapped keeps it"
    lease, context = begun(inside)
    path = FOLDER / lease.handoff.name
    assert path.exists()
    inside.core.handoffs.void("default")
    assert not path.exists()
    inside.core.handoffs.put(lease, 0, pair=context.seen(0, 8))  # nobody takes it any more


def test_what_is_said_to_be_of_no_use_does_not_count_as_fetched(inside: Inside, client: httpx.Client) -> None:
    handle = fuse(client)["handle"]
    lease = inside.core.handoffs._held[handle]  # pyright: ignore[reportPrivateUsage]
    assert good(client.get(f"/v1/handoffs/{handle}?final=11"))["final"] >= 11 and not lease.was_fetched
    good(client.get(f"/v1/handoffs/{handle}?final=12"))
    assert lease.was_fetched
    assert client.delete(f"/v1/handoffs/{handle}?used=false").status_code == 204
    assert not lease.was_fetched


OWNER = """
import sys, time
from service.vllm.shared_memory import SharedMemory
memory = SharedMemory(5000)
assert memory.reserve(0, 5000)
print(memory.name, flush=True)
time.sleep(600)
"""


def test_memory_of_a_killed_service_is_removed_by_the_next_and_that_of_a_living_one_is_not() -> None:
    owners = [subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        names = [each.stdout.readline().strip() for each in owners if each.stdout]
        owners[0].kill()
        owners[0].wait()
        assert all((FOLDER / each).exists() for each in names)
        Handoffs(1 << 20).close()
        assert [(FOLDER / each).exists() for each in names] == [False, True]
    finally:
        for each in owners:
            each.kill()
            each.communicate()
        sweep_shared_memory()
    assert not (FOLDER / names[1]).exists()


def test_where_the_folder_has_no_room_memory_is_this_process_own(inside: Inside, client: httpx.Client) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.vllm.shared_memory.FOLDER", FOLDER / "absent")
        given = fuse(client)
    form = good(client.get(f"/v1/handoffs/{given['handle']}?final=12"))
    assert form["shared"] == ""
    path = f"/v1/handoffs/{given['handle']}/layers/0?start=0&stop={form['tokens'] - 1}"
    assert any(client.get(path).content)


def _operator(inside: Inside) -> Principal:
    found = inside.core.control.identify(inside.key)
    assert found is not None
    return found
