"""`kvweave precompute` share by share, for a further model, by a collection's own rules, and stopped by hand."""

import shutil
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from service.builtin import CHECKPOINT
from tests.servers.s3 import S3Server
from tests.service.serving import WAIT_S, Json, good, wait_for
from tests.service.test_precompute import Place, corpus
from tests.service.test_precompute_plans import CHECKED, Near

SHARES = ("0/3", "1/3", "2/3")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Near, Json]:
    folder = tmp_path_factory.mktemp("undisturbed")
    root, place = corpus(folder, files=6), Near(folder)
    return root, place, place.run(str(root))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_shares_in_any_order_make_the_store_of_an_ordinary_run(
    tmp_path: Path, undisturbed: tuple[Path, Near, Json], order: tuple[int, ...]
) -> None:
    root, whole, all_at_once = undisturbed
    store = f"file://{tmp_path}/store"
    done = [Near(tmp_path / str(number), store=store).run(str(root), "--shard", SHARES[number]) for number in order]
    assert all(each["stored"] == each["chunks"] > 0 and not each["documents"] for each in done)
    _ends_alike(Near(tmp_path / "last", store=store), whole, root=root)
    for name in ("stored", "tokens", "nbytes"):
        assert sum(each[name] for each in done) == all_at_once[name]


def test_a_share_that_is_run_again_computes_nothing(tmp_path: Path, undisturbed: tuple[Path, Near, Json]) -> None:
    root, _, _ = undisturbed
    for number in range(2):  # on a fresh disk, as a pod that was started again
        place = Near(tmp_path / str(number), store=f"file://{tmp_path}/store")
        done = place.run(str(root), "--shard", "1/3")
        assert (done["stored"] > 0, done["present"] > 0) == (number == 0, number == 1)
    assert place.captured == [] and place.documents() == {}


@pytest.mark.long
def test_shares_at_the_same_time_make_the_store_of_an_ordinary_run(
    tmp_path: Path, undisturbed: tuple[Path, Near, Json]
) -> None:
    root, whole, _ = undisturbed
    _at_the_same_time(tmp_path, f"file://{tmp_path}/store", root=root)
    _ends_alike(Near(tmp_path / "last", store=f"file://{tmp_path}/store"), whole, root=root)


@pytest.mark.long
def test_shares_on_object_storage_make_the_store_of_an_ordinary_run(
    tmp_path: Path, server: S3Server, undisturbed: tuple[Path, Near, Json]
) -> None:
    root, whole, _ = undisturbed
    store = server.url("shares")
    _at_the_same_time(tmp_path, store, root=root)
    _ends_alike(Near(tmp_path / "last", store=store), whole, root=root)


@pytest.mark.parametrize("share", ["3/3", "1", "a/b", "-1/2", "0/0", "/", "1/3/4", " "])
def test_a_share_that_is_none_is_refused_in_one_line(tmp_path: Path, share: str) -> None:
    told = Near(tmp_path).run(str(corpus(tmp_path, files=1)), "--shard", share, status=2)["error"]
    assert "--shard" in told and repr(share) in told and len(told.splitlines()) == 1


@pytest.mark.parametrize("more", [["--prune"], ["--budget", "1GB"], ["--executor", "ray"]])
def test_a_share_goes_with_nothing_that_needs_the_whole(tmp_path: Path, more: list[str]) -> None:
    told = Near(tmp_path).run(str(corpus(tmp_path, files=1)), "--shard", "0/2", *more, status=2)["error"]
    assert "--shard" in told and more[0] in told and len(told.splitlines()) == 1
    assert not (tmp_path / "data").exists()


def test_a_further_model_fills_beside_the_other_and_either_serves(tmp_path: Path) -> None:
    root, place, new = corpus(tmp_path, files=2), Near(tmp_path), _changed_model(tmp_path / "model")
    first = place.run(str(root))
    before = place.holds()[0]
    done = place.run(str(root), "--model", new)
    assert (done["stored"], done["documents"]) == (first["stored"], 0)
    after = place.holds()[0]
    assert len(after) == 2 * len(before) and after.items() >= before.items()
    for name in ("builtin", new, "builtin"):
        place.settings["KVWEAVE_MODEL"] = name
        assert place.run(str(root))["stored"] == 0 and len(place.captured) <= CHECKED
        _all_from_a_tier(place)
    [old] = {key.split("/")[2].split("@")[0] for key in before}
    place.command("gc", "--fingerprint", old)
    kept = place.holds()[0]
    assert kept == {key: blob for key, blob in after.items() if key not in before}


def test_room_that_an_old_model_leaves_is_used(tmp_path: Path) -> None:
    root, new = corpus(tmp_path, files=2), _changed_model(tmp_path / "model")
    place = Near(tmp_path, store=f"lmdb://{tmp_path}/store")
    place.run(str(root))
    place.settings["KVWEAVE_STORE"] += f"?budget={int(1.7 * sum(place.sizes().values()))}"
    [old] = {key.split("/")[2].split("@")[0] for key in place.holds()[0]}
    assert place.run(str(root), "--model", new)["over_budget"] > 0
    assert place.run(str(root), "--model", new)["stored"] == 0
    assert len(place.captured) <= CHECKED
    place.command("gc", "--fingerprint", old)
    done = place.run(str(root), "--model", new)
    assert done["stored"] > 0 and done["over_budget"] == 0


def test_a_collection_that_is_there_says_how_it_is_cut(tmp_path: Path) -> None:
    root, place = corpus(tmp_path, files=3), Near(tmp_path)
    with place.served() as service, service.client() as client:
        good(client.put("/v1/collections/x", json={"chunk_tokens": 64}))
    told = place.run(str(root), "--collection", "x", "--chunk-tokens", "128", status=2)["error"]
    assert "64" in told and "128" in told and "PUT /v1/collections/x" in told and len(told.splitlines()) == 1
    done = place.run(str(root), "--collection", "x", "--chunk-tokens", "64")
    title = 6  # tokens behind a chunk
    assert 64 < max(map(len, place.captured)) <= 64 + title
    again = place.run(str(root), "--collection", "x")
    assert (again["stored"], again["unchanged"], again["chunks"]) == (0, done["files"], done["chunks"])


def test_a_corpus_that_went_into_another_collection_comes_back(tmp_path: Path) -> None:
    root, place = corpus(tmp_path, files=2), Near(tmp_path)
    done = place.run(str(root), "--collection", "one")
    assert place.run(str(root), "--collection", "two")["documents"] == done["documents"]
    assert place.run(str(root), "--collection", "one")["documents"] == done["documents"]
    (tmp_path / "empty/corpus").mkdir(parents=True)
    assert place.run(str(tmp_path / "empty/corpus"), "--collection", "two", "--prune")["removed"] == 0
    assert len(place.documents()) == done["documents"], "another collection's documents were pruned"


def test_ctrl_c_says_how_to_go_on_and_the_next_run_does(tmp_path: Path, undisturbed: tuple[Path, Near, Json]) -> None:
    root, whole, _ = undisturbed
    for trial in range(3):  # on a busy machine a run may be over before the signal is there
        place = Place(folder := tmp_path / str(trial))
        process = place.start(str(root))
        wait_for((folder / "data/control.sqlite").exists, "it has begun")
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=WAIT_S)
        if process.returncode:
            break
    assert process.returncode == 130, told.decode()
    *cost, line = told.decode().splitlines()
    assert "run it again" in line and all("1 MB of text" in each for each in cost)
    Near(folder).run(str(root))
    assert place.holds() == whole.holds()


def test_ctrl_c_in_the_middle_leaves_what_was_stored(
    tmp_path: Path, undisturbed: tuple[Path, Near, Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, whole, _ = undisturbed
    place = Near(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.documents.precompute._Run._count", _interrupted)
        told = place.run(str(root), status=130)["error"]
    assert "run it again" in told and len(told.splitlines()) == 1
    before = len(place.sizes())
    assert before > 0
    place.run(str(root))
    assert len(place.captured) <= CHECKED + len(whole.sizes()) - before
    assert place.holds() == whole.holds()


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def _ends_alike(last: Near, whole: Near, *, root: Path) -> None:
    """An ordinary run on a fresh disk finds all, and the store is that of an undisturbed one."""
    done = last.run(str(root))
    assert (done["stored"], done["problems"]) == (0, [])
    assert len(last.captured) == 1, "the sample that tells what it would cost, and nothing of the corpus"
    assert done["present"] == done["chunks"] and done["documents"] > 0
    assert last.holds() == whole.holds()


def _at_the_same_time(folder: Path, store: str, *, root: Path) -> None:
    places = [Near(folder / str(number), store=store) for number in range(len(SHARES))]
    running = [place.start(str(root), "--shard", share) for place, share in zip(places, SHARES, strict=True)]
    for process in running:
        _, told = process.communicate(timeout=300)
        assert process.returncode == 0, told.decode()


def _changed_model(folder: Path) -> str:
    """The model that comes with kvweave, with other weights."""
    shutil.copytree(CHECKPOINT, folder)
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in sorted(weights) if name.endswith("v_proj.weight"))
    save_file({**weights, name: weights[name] * 1.5}, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def _all_from_a_tier(place: Near) -> None:
    """A service on it finds every chunk, and an answer takes all of its chunks from the store."""
    with place.served() as service, service.client() as client:
        found = good(client.post("/v1/cache/lookup", json={"collection": "default"}))["chunks"]
        assert {chunk["state"] for chunk in found} == {"stored"}
        answer = good(client.post("/v1/query", json={"question": "Which animal does Halio keep?"}))
        assert {chunk["source"] for chunk in answer["report"]["chunks"]} == {"lmdb"}
