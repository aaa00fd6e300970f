"""The image, and the services that `docker compose` runs from it."""

import fnmatch
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from service.settings import CONFIG
from service.vllm.shared_memory import FOLDER
from tests.deploy.plans import (
    DEPLOY,
    DOCKERFILE,
    OUR_IMAGE,
    ROOT,
    SETTINGS,
    Plan,
    document,
    is_pinned,
    open_below,
    ours,
    parse,
    settings_of,
)
from tests.servers.listening import listening
from vllm_kvweave.support import VERSIONS, Deployment

COMPOSE = document(ROOT / "docker-compose.yml")
SERVICES: Plan = COMPOSE["services"]
SERVING = ("service", "service-gpu")
REPLICAS = ("replica-1", "replica-2")
GIVEN = {"S3_ACCESS_KEY": "an-access-key", "S3_SECRET_KEY": "a-secret-key"}
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")

OWNED = {"/prometheus": "65534", "/var/lib/grafana": "472"}  # by the image that is mounted over

every_service = pytest.mark.parametrize("name", SERVICES)


def filled(text: str) -> str:
    """With its variables replaced, as for a user who sets only what must be set."""

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        assert kind != "?" or name in GIVEN, f"{name} must be set"
        return GIVEN.get(name, rest or "")

    return VARIABLE.sub(value, text)


def environment(name: str) -> dict[str, str]:
    found: dict[str, str | None] = SERVICES[name].get("environment", {})
    return {key: filled(value) for key, value in found.items() if value is not None}


def ends_by_itself(service: Plan) -> bool:
    return service["restart"] == "no"


@every_service
def test_a_service_has_no_rights_that_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    user, group = map(int, service["user"].split(":"))
    assert user > 0
    assert group > 0
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "devices", "pid", "ipc", "userns_mode"} & service.keys()
    assert service.get("network_mode", "none") == "none"


@every_service
def test_a_service_runs_a_pinned_image(name: str) -> None:
    assert is_pinned(SERVICES[name]["image"])


def test_the_image_is_made_from_a_pinned_one() -> None:
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", DOCKERFILE, re.MULTILINE))
    plain = re.sub(r"\$\{(\w+)\}", lambda named: defaults.get(named[1], ""), DOCKERFILE)
    bases = re.findall(r"^FROM (\S+)(?: AS (\w+))?$", plain, re.MULTILINE)
    stages = {stage for _, stage in bases}
    assert [base for base, _ in bases if base not in stages and not (is_pinned(base) and "@sha256:" in base)] == []


@every_service
def test_a_service_that_stays_says_how_it_does(name: str) -> None:
    service = SERVICES[name]
    check = service.get("healthcheck", {})
    if ends_by_itself(service):
        assert check == {"disable": True}
    elif not service["image"].startswith(OUR_IMAGE):  # ours has the image's own
        assert check["test"][0] == "CMD"


@every_service
def test_a_port_is_published_on_loopback_alone(name: str) -> None:
    assert [port for port in SERVICES[name].get("ports", []) if not port.startswith("127.0.0.1:")] == []


def test_the_s3_server_is_reached_by_the_service_and_its_jobs_alone() -> None:
    assert COMPOSE["networks"]["store"] == {"internal": True}
    assert SERVICES["s3"]["networks"] == ["store"]
    assert {name for name, each in SERVICES.items() if "store" in each.get("networks", ())} == {
        "s3", *SERVING, *REPLICAS, "job", "job-gpu"
    }  # fmt: skip


@every_service
def test_all_that_a_service_refers_to_is_there(name: str) -> None:
    service = SERVICES[name]
    for each in service.get("volumes", []):
        source, target, *_ = each.split(":")
        assert target.startswith("/")
        assert (ROOT / source).exists() if source.startswith("./") else source in COMPOSE["volumes"]
    assert set(service.get("networks", ())) <= COMPOSE["networks"].keys()
    for other, how in service.get("depends_on", {}).items():
        ends = ends_by_itself(SERVICES[other])
        assert how["condition"] == ("service_completed_successfully" if ends else "service_healthy")


def mounts(name: str) -> Iterator[tuple[str, str]]:
    """The volumes that a service writes into, and where."""
    for each in SERVICES[name].get("volumes", []):
        source, target, *rights = each.split(":")
        if source in COMPOSE["volumes"] and rights != ["ro"]:
            yield source, target


def before(name: str) -> Iterator[str]:
    """The service, and all that have run when it starts."""
    yield name
    for each in SERVICES[name].get("depends_on", {}):
        yield from before(each)


@every_service
def test_a_volume_is_its_users_when_a_service_first_writes_into_it(name: str) -> None:
    """A new volume takes owner and rights of the image's folder that it is mounted over, and is root's without one."""
    told = re.findall(r"install -d -o (\d+) -g \d+ -m \d+ (/.*?)(?: \\)?$", DOCKERFILE, re.MULTILINE)
    prepared = {folder: user for user, folders in told for folder in folders.split()}
    for volume, target in mounts(name):
        options = (COMPOSE["volumes"][volume].get("driver_opts") or {}).get("o", "")
        owners = {
            prepared.get(folder)
            for each in before(name)
            if SERVICES[each]["image"].startswith(OUR_IMAGE)
            for source, folder in mounts(each)
            if source == volume
        }
        user = SERVICES[name]["user"].split(":")[0]
        assert OWNED.get(target) == user or f"uid={user}," in options or owners == {user}, f"{volume} at {target}"


KEY_MAKERS = ("metrics-key", "postgres-key", "vllm-key")


@pytest.mark.parametrize("name", KEY_MAKERS)
def test_a_key_is_made_once_by_the_command_that_stands_there(name: str, tmp_path: Path) -> None:
    """Outside of a container, with folders below another one."""
    (script,) = SERVICES[name]["command"]
    for folder in (name, "data"):
        (tmp_path / folder).mkdir(mode=0o700)
        script = script.replace(f"/{folder}/", f"{tmp_path}/{folder}/")
    (tmp_path / "data" / "admin.key").write_text("made by the service")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = {"PATH": path, "KVWEAVE_DATA": f"{tmp_path}/data", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*SERVICES[name]["entrypoint"], script.replace("$$", "$")]
    subprocess.run(command, env=settings, cwd=tmp_path, check=True, capture_output=True)
    made = {file.name: file.read_text() for file in (tmp_path / name).iterdir()}
    if name == "postgres-key":
        assert made["pgpass"] == f"postgres:5432:kvweave:kvweave:{made['password']}\n" and len(made["password"]) == 48
    else:
        assert [*made] == ["key"] and re.fullmatch(r"kvw_[\w-]+\n", made["key"])
    subprocess.run(command, env=settings, cwd=tmp_path, check=True, capture_output=True)
    assert {file.name: file.read_text() for file in (tmp_path / name).iterdir()} == made


@every_service
def test_no_secret_stands_in_the_file(name: str) -> None:
    for key, value in SERVICES[name].get("environment", {}).items():
        if re.search(r"KEY|SECRET|TOKEN|PASSWORD", key) and value is not None:
            variable = VARIABLE.fullmatch(value)
            if key.endswith("_FILE"):
                continue  # where it is
            assert variable is not None
            assert variable[2] == "?", f"{key} has a default"
            assert len(variable[3]) > 20, f"the error for {key} says what to do"


@pytest.mark.parametrize("name", [*SERVING, *REPLICAS, "job", "job-gpu"])
def test_every_setting_can_be_set_and_those_that_are_make_a_start(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ours(SERVICES[name]["environment"]) == SETTINGS - {CONFIG}
    settings = settings_of(environment(name), monkeypatch)
    assert settings.auth
    assert any(each.endswith(f":{settings.data}") for each in SERVICES[name]["volumes"])
    open_below(settings.store, tmp_path)


def test_a_job_shares_no_lmdb_folder_with_the_service() -> None:
    """LMDB tells its readers apart by process numbers, which are the same in each container."""
    serving, job = (environment(name)["KVWEAVE_STORE"] for name in ("service", "job"))
    assert "lmdb:" in serving
    assert job == serving.split("|")[-1]


def test_the_service_on_a_gpu_is_the_same_with_a_gpu() -> None:
    plain, gpu = (dict(SERVICES[name]) for name in SERVING)
    (device,) = gpu.pop("deploy")["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert gpu.pop("profiles") == ["gpu"]
    assert gpu == plain


def test_replicas_differ_in_nothing_but_their_own_folder() -> None:
    one, other = (dict(SERVICES[name]) for name in REPLICAS)
    assert [each.replace("replica-1", "replica-2") for each in one.pop("volumes")] == other.pop("volumes")
    assert one == other
    assert environment("replica-1")["KVWEAVE_STORE"] == environment("service")["KVWEAVE_STORE"]
    assert {name for name, each in SERVICES.items() if "truth" in each.get("networks", ())} == {"postgres", *REPLICAS}
    assert COMPOSE["networks"]["truth"] == {"internal": True}


def test_the_balancer_knows_each_replica() -> None:
    told = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    assert re.findall(r"^ +server ([\w-]+):(\d+) ", told, re.MULTILINE) == [
        (name, environment(name)["KVWEAVE_PORT"]) for name in REPLICAS
    ]
    assert {*SERVICES["balancer"]["depends_on"]} == {*REPLICAS}


def test_the_replicas_find_the_password_that_was_made() -> None:
    maker, reader, database = (SERVICES[name] for name in ("postgres-key", "replica-1", "postgres"))
    script = "\n".join(maker["command"])
    (folder,) = (each.split(":")[1] for each in maker["volumes"] if each.startswith("postgres-key:"))
    for name, file in (("replica-1", "PGPASSFILE"), ("postgres", "POSTGRES_PASSWORD_FILE")):
        path = Path(environment(name)[file])
        assert f"{folder}/{path.name}" in script and f"postgres-key:{path.parent}:ro" in SERVICES[name]["volumes"]
    assert maker["user"] == reader["user"] == database["user"]
    address = urlsplit(environment("replica-1")["KVWEAVE_DATA"])
    told = f"{address.hostname}:5432:{address.path.strip('/')}:{address.username}:"
    assert told in script and address.hostname in SERVICES


def test_prometheus_reads_the_service_with_the_key_that_is_made_for_it() -> None:
    (job,) = document(DEPLOY / "prometheus.yml")["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    for name in SERVING:
        assert host in SERVICES[name]["networks"]["metrics"]["aliases"]
        assert environment(name)["KVWEAVE_PORT"] == port
    maker, reader = SERVICES["metrics-key"], SERVICES["prometheus"]
    key = Path(job["authorization"]["credentials_file"])
    assert f"metrics-key:{key.parent}" in maker["volumes"]
    assert f"metrics-key:{key.parent}:ro" in reader["volumes"]
    assert maker["user"].split(":")[1] == reader["user"].split(":")[1]
    script = "\n".join(maker["command"])
    assert re.search(rf"mv \S+ {key}$", script, re.MULTILINE)
    (made,) = re.findall(r"^kvweave (.*?) >", script, re.MULTILINE)
    parse(shlex.split(made))


def test_vllm_is_of_a_version_that_is_served_and_fetches_by_a_key_that_may_do_nothing_else() -> None:
    maker, vllm = SERVICES["vllm-key"], SERVICES["vllm"]
    assert any(vllm["image"].startswith(f"vllm/vllm-openai:v{each}.") for each in VERSIONS)
    (made,) = re.findall(r"^kvweave (.*?) >", "\n".join(maker["command"]), re.MULTILINE)
    assert "--role fetch" in made
    parse(shlex.split(made))
    assert "vllm-key:/vllm-key" in maker["volumes"] and "vllm-key:/vllm-key:ro" in vllm["volumes"]
    assert "cat /vllm-key/key" in vllm["command"][0]
    transfer = json.loads(environment("vllm")["VLLM_TRANSFER"])
    deployment = Deployment(f"{VERSIONS[-1]}.0", transfer["kv_role"], transfer["kv_load_failure_policy"])
    deployment.check()
    assert importlib.util.find_spec(transfer["kv_connector_module_path"].partition(".")[0])


def test_vllm_and_the_service_share_a_user_and_the_memory_for_prompts() -> None:
    address = urlsplit(environment("vllm")["KVWEAVE_BASE_URL"])
    for name in SERVING:
        assert SERVICES[name]["user"] == SERVICES["vllm"]["user"]
        assert f"prompts:{FOLDER}" in SERVICES[name]["volumes"]
        assert address.hostname in SERVICES[name]["networks"]["default"]["aliases"]
        assert environment(name)["KVWEAVE_PORT"] == str(address.port)
    assert f"prompts:{FOLDER}" in SERVICES["vllm"]["volumes"]
    options = COMPOSE["volumes"]["prompts"]["driver_opts"]
    user, group = SERVICES["vllm"]["user"].split(":")
    assert options["type"] == "tmpfs" and {f"uid={user}", f"gid={group}", "mode=0700"} <= {*options["o"].split(",")}


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = document(provisioning / "datasources" / "prometheus.yml")["datasources"]
    (boards,) = document(provisioning / "dashboards" / "kvweave.yml")["providers"]
    grafana = SERVICES["grafana"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in SERVICES
    mounted = {target: ROOT / folder for folder, target, *_ in (each.split(":") for each in grafana["volumes"])}
    assert mounted[grafana["environment"]["GF_PATHS_PROVISIONING"]] == ROOT / "./service/deploy/grafana/provisioning"
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == boards["options"]["path"]
    assert (mounted[str(home.parent)] / home.name).is_file()


def test_the_image_holds_the_packages_and_the_files_beside_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    packages = {pattern.removesuffix("*") for pattern in project["packages"]["find"]["include"]}
    assert set(re.findall(r"^COPY (\w+) \./\1$", DOCKERFILE, re.MULTILINE)) == packages
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    copied = {name for line in re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, re.MULTILINE) for name in line.split()}
    assert {name.removeprefix("!") for name in allowed if name.startswith("!")} == copied

    data: dict[str, list[str]] = project["package-data"]
    left_out = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "service").rglob("*")
        if path.is_file()
        and path.suffix not in (".py", ".pyc")
        and DEPLOY not in path.parents
        and not any(
            fnmatch.fnmatch(path.relative_to(ROOT / name.replace(".", "/")).as_posix(), pattern)
            for name, patterns in data.items()
            if (ROOT / name.replace(".", "/")) in path.parents
            for pattern in patterns
        )
    ]
    assert left_out == [], "name them in [tool.setuptools.package-data]"


def answering(status: int) -> type[BaseHTTPRequestHandler]:
    """What answers so when it is asked whether it is ready."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # the library's name
            return

    return Handler


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_the_health_check_is_green_when_the_service_is_ready_whatever_proxy_is_set(status: int, healthy: bool) -> None:  # noqa: FBT001
    (script,) = re.findall(r'^    CMD \["python", "-c", "(.*)"\]$', DOCKERFILE, re.MULTILINE)
    with listening(answering(status)) as url:
        variables = {**os.environ, "KVWEAVE_PORT": str(urlsplit(url).port), "http_proxy": "http://127.0.0.1:9"}
        run = subprocess.run([sys.executable, "-c", script], env=variables, timeout=60, check=False)
    assert (run.returncode == 0) is healthy


def test_the_image_runs_as_nobody_in_particular_and_starts_the_service() -> None:
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE) == ["10001:10001"]
    (entry,) = re.findall(r'^ENTRYPOINT \["(\w+)"\]$', DOCKERFILE, re.MULTILINE)
    (command,) = re.findall(r'^CMD \["(\w+)"\]$', DOCKERFILE, re.MULTILINE)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert entry in scripts
    parse([command])
    assert set(re.findall(r"\b(KVWEAVE_\w+)=", DOCKERFILE)) <= SETTINGS
