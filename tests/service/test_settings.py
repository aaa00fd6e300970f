"""Settings: what is unknown or malformed stops the start with a sentence that mends it."""

from pathlib import Path

import pytest

from service.lab.demo.demo_answers import demo_settings
from service.settings import Settings, SettingsError, load_settings
from store.url import open_store


def test_defaults_bind_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVWEAVE_HOST", raising=False)
    assert load_settings().host == "127.0.0.1"
    assert load_settings().store.startswith("lmdb:///")


def test_the_environment_wins_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "k.toml").write_text('store = "mem://"\nport = 9001\n')
    monkeypatch.setenv("KVWEAVE_CONFIG", str(tmp_path / "k.toml"))
    monkeypatch.setenv("KVWEAVE_PORT", "9002")
    assert load_settings() == Settings(store="mem://", port=9002)


@pytest.mark.parametrize("name", ["c#1", "a?budget=1", "p%41q", "a\tb", "plain é space"])
def test_the_store_is_in_the_data_folder_whatever_its_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv("KVWEAVE_DATA", str(tmp_path / name / "data"))
    settings = load_settings()
    for each in (settings, demo_settings(settings)):
        with open_store(each.store):
            assert (each.data / "store").is_dir()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert name != "plain é space" or settings.store == f"lmdb://{settings.data}/store"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("KVWEAVE_DATA", "mysql://db/kv", r"KVWEAVE_DATA\): .* begins with postgresql://, and not with mysql://$"),
        ("KVWEAVE_PORT", "70000", "65535"),
        ("KVWEAVE_POLICY", "blend", r"KVWEAVE_POLICY\): unknown policy 'blend': choose one of full, "),
        ("KVWEAVE_RATIO", "1.5", "KVWEAVE_RATIO"),
        ("KVWEAVE_MODEL_NAME", "/models/mine", r"KVWEAVE_MODEL_NAME\): .*got '/models/mine': give one such as"),
        ("KVWEAVE_CODEC", "q9", "q2 to q8"),
        ("KVWEAVE_CODEC", "q4@" + "0" * 32, "q4@0.*use lossless, q2 to q8"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=words):
        load_settings()


def test_what_clients_read_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = load_settings()
    for name in ("KVWEAVE_API_KEY", "KVWEAVE_BASE_URL"):
        monkeypatch.setenv(name, "x")
    assert load_settings() == plain
    (tmp_path / "k.toml").write_text('api_key = "x"\n')
    monkeypatch.setenv("KVWEAVE_CONFIG", str(tmp_path / "k.toml"))
    with pytest.raises(SettingsError, match="unknown setting 'api_key'"):
        load_settings()


@pytest.mark.parametrize(("text", "words"), [("stoer = 1\n", "stoer"), ("port = 'x'\n", "port")])
def test_a_wrong_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "k.toml").write_text(text)
    monkeypatch.setenv("KVWEAVE_CONFIG", str(tmp_path / "k.toml"))
    with pytest.raises(SettingsError, match=words):
        load_settings()
