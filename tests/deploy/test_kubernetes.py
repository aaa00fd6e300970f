"""The manifests: they hang together, the service takes their settings, and the strictest policy lets their pods in."""

import json
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import pytest

import vllm_kvweave
from service.app.composition import compose_core
from service.application import application
from service.settings import load_settings
from service.vllm.shared_memory import FOLDER
from tests.deploy.plans import (
    KUBERNETES,
    ROOT,
    SETTINGS,
    Plan,
    document,
    documents,
    is_pinned,
    open_below,
    ours,
    parse,
    settings_of,
)
from vllm_kvweave.support import VERSIONS, Deployment

OBJECTS: list[Plan] = [
    each
    for path in sorted(KUBERNETES.rglob("*.yaml"))
    if path.name != "kustomization.yaml" and "components" not in path.parts
    for each in documents(path)
]
WORKLOADS: dict[str, Plan] = {each["metadata"]["name"]: each for each in OBJECTS if "template" in each.get("spec", {})}
JOBS = [name for name, each in WORKLOADS.items() if each["kind"] == "Job"]
OF_THE_USER = {"kvweave-s3", "kvweave-corpus"}

every_workload = pytest.mark.parametrize("name", WORKLOADS)
every_job = pytest.mark.parametrize("name", JOBS)


def named(kind: str) -> dict[str, Plan]:
    return {each["metadata"]["name"]: each for each in OBJECTS if each["kind"] == kind}


def pod(name: str) -> Plan:
    return WORKLOADS[name]["spec"]["template"]["spec"]


def container(name: str) -> Plan:
    (only,) = pod(name)["containers"]
    return only


def environment(name: str) -> dict[str, str]:
    """What the container finds, but for what a Secret holds."""
    maps = named("ConfigMap")
    found: dict[str, str] = {}
    for each in container(name)["envFrom"]:
        found |= maps[each["configMapRef"]["name"]]["data"]
    for each in container(name)["env"]:
        reference = each["valueFrom"].get("configMapKeyRef")
        found[each["name"]] = maps[reference["name"]]["data"][reference["key"]] if reference else ""
    return found


def test_there_are_a_service_shards_and_a_last_run() -> None:
    assert WORKLOADS.keys() == {"kvweave", "kvweave-shards", "kvweave-finish"}


@every_workload
def test_a_pod_fits_the_restricted_policy(name: str) -> None:
    for key, value in {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}.items():
        assert pod(name)["securityContext"][key] == value
    assert container(name)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod(name)["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod(name).keys()
    assert all(each.keys() & {"emptyDir", "persistentVolumeClaim"} for each in pod(name)["volumes"])


@every_workload
def test_the_cluster_adds_no_variable_that_looks_like_a_setting(name: str) -> None:
    """A Service named kvweave would become KVWEAVE_PORT and others in every pod."""
    assert pod(name)["enableServiceLinks"] is False


@every_workload
def test_a_pod_runs_the_image_that_compose_builds(name: str) -> None:
    image = container(name)["image"]
    assert is_pinned(image)
    assert image == document(ROOT / "docker-compose.yml")["services"]["service"]["image"]


@every_workload
def test_the_settings_make_a_start(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = environment(name)
    assert ours(found) <= SETTINGS
    settings = settings_of(found, monkeypatch)
    assert settings.auth
    open_below(settings.store, tmp_path)
    (mount,) = (each["mountPath"] for each in container(name)["volumeMounts"] if each["name"] == "data")
    assert settings.data.parent == Path(mount), "a volume's own folder is open to others"


@every_job
def test_a_job_has_the_last_tier_alone(name: str) -> None:
    """LMDB tells its readers apart by process numbers, which are the same in each pod."""
    assert environment(name)["KVWEAVE_STORE"] == environment("kvweave")["KVWEAVE_STORE"].split("|")[-1]


@every_workload
def test_all_that_a_pod_refers_to_is_there(name: str) -> None:
    known = {*named("ConfigMap"), *named("PersistentVolumeClaim"), *OF_THE_USER}
    volumes = {each["name"]: each for each in pod(name)["volumes"]}
    claims = {
        each["persistentVolumeClaim"]["claimName"] for each in volumes.values() if "persistentVolumeClaim" in each
    }
    secrets = {each["valueFrom"].get("secretKeyRef", {}).get("name", "kvweave-s3") for each in container(name)["env"]}
    assert claims | secrets <= known
    assert {each["name"] for each in container(name)["volumeMounts"]} == volumes.keys()
    assert {"/data", "/cache", "/tmp"} <= {each["mountPath"] for each in container(name)["volumeMounts"]}


def test_the_selectors_meet_the_service_and_no_job() -> None:
    spec = WORKLOADS["kvweave"]["spec"]
    (affinity,) = pod("kvweave-finish")["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    selectors = (
        spec["selector"]["matchLabels"],
        named("Service")["kvweave"]["spec"]["selector"],
        affinity["labelSelector"]["matchLabels"],
    )
    for selector in selectors:
        meets = [
            name
            for name, each in WORKLOADS.items()
            if selector.items() <= each["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert meets == ["kvweave"]


def test_one_pod_at_a_time_has_the_data() -> None:
    assert WORKLOADS["kvweave"]["kind"] == "StatefulSet"
    assert WORKLOADS["kvweave"]["spec"]["replicas"] == 1
    assert named("PersistentVolumeClaim")["kvweave-data"]["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_the_probes_ask_endpoints_that_are_there() -> None:
    served = application(lambda: compose_core(load_settings())).openapi()["paths"]
    probes = {key: each for key, each in container("kvweave").items() if key.endswith("Probe")}
    assert probes.keys() == {"startupProbe", "livenessProbe", "readinessProbe"}
    (port,) = container("kvweave")["ports"]
    assert str(port["containerPort"]) == environment("kvweave")["KVWEAVE_PORT"]
    for each in probes.values():
        assert each["httpGet"]["path"] in served
        assert each["httpGet"]["port"] == port["name"]
    assert probes["livenessProbe"]["httpGet"]["path"] == "/healthz"


@every_workload
def test_the_command_line_knows_the_arguments(name: str) -> None:
    parse([each.replace("$(JOB_COMPLETION_INDEX)", "0") for each in container(name)["args"]])


def test_the_shards_are_as_many_as_their_argument_says() -> None:
    spec = WORKLOADS["kvweave-shards"]["spec"]
    *same, option, shard = container("kvweave-shards")["args"]
    assert spec["completionMode"] == "Indexed"
    assert [option, shard] == ["--shard", f"$(JOB_COMPLETION_INDEX)/{spec['completions']}"]
    assert container("kvweave-finish")["args"] == same, "both read the same corpus in the same way"


def test_a_kustomization_names_what_is_there() -> None:
    for path in KUBERNETES.rglob("kustomization.yaml"):
        plan = document(path)
        places = [
            *plan.get("resources", []),
            *plan.get("components", []),
            *(each["path"] for each in plan.get("patches", [])),
        ]
        assert places
        for place in places:
            there = path.parent / place
            assert there.is_file() or (there / "kustomization.yaml").is_file()
            assert there.resolve() not in path.parents, "kustomize takes no folder around its own"
    assert {path.name for path in (KUBERNETES / "base").iterdir()} == {
        "kustomization.yaml", *document(KUBERNETES / "base" / "kustomization.yaml")["resources"]
    }  # fmt: skip


def test_replicas_keep_nothing_and_find_their_database_in_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what the one service is, but for its volume and its address of the data."""
    component = KUBERNETES / "components" / "replicas"
    patches = {each["path"]: each for each in plan_of(component)["patches"]}
    patched, claim = document(component / "statefulset.yaml"), document(component / "claim.yaml")
    assert patched["metadata"] == {"name": "kvweave"} and patched["spec"]["replicas"] > 1
    assert claim["$patch"] == "delete" and claim["metadata"]["name"] in named("PersistentVolumeClaim")
    spec = patched["spec"]["template"]["spec"]
    (volume,) = spec["volumes"]
    assert volume["name"] == "data" and "emptyDir" in volume
    assert volume["persistentVolumeClaim"] == {"$patch": "delete"}
    (only,) = spec["containers"]
    assert only["name"] == container("kvweave")["name"]
    told = {each["name"]: each["valueFrom"]["secretKeyRef"]["key"] for each in only["env"]}
    assert told == {"KVWEAVE_DATA": "KVWEAVE_DATA", "PGPASSWORD": "PGPASSWORD"}
    settings = settings_of(
        {**environment("kvweave"), "KVWEAVE_DATA": "postgresql://kvweave@postgres/kvweave#/data/kvweave"}, monkeypatch
    )
    assert settings.database and settings.data == Path("/data/kvweave")
    assert patches["deployment.yaml"]["options"] == {"allowKindChange": True}
    steps = cast(list[Plan], document(component / "deployment.yaml"))
    changes: Plan = {each["path"]: each.get("value") for each in steps}
    assert changes["/kind"] == "Deployment" and changes["/spec/strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    budget = document(component / "disruption.yaml")["spec"]
    assert budget["selector"] == WORKLOADS["kvweave"]["spec"]["selector"] and budget["maxUnavailable"] == 1


def test_vllm_runs_in_the_services_pod_and_maps_its_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    component = KUBERNETES / "components" / "vllm"
    patched, given = (document(component / each["path"]) for each in reversed(plan_of(component)["patches"]))
    assert patched["kind"] == WORKLOADS["kvweave"]["kind"] and given["metadata"]["name"] in named("ConfigMap")
    spec = patched["spec"]["template"]["spec"]
    service, vllm = spec["containers"]
    assert service["name"] == container("kvweave")["name"]
    for each in (service, vllm):
        assert {"name": "prompts", "mountPath": str(FOLDER)} in each["volumeMounts"]
    (memory,) = spec["volumes"]
    assert memory["name"] == "prompts" and memory["emptyDir"]["medium"] == "Memory"
    assert {each["name"] for each in vllm["volumeMounts"]} <= {
        "prompts",
        *(v["name"] for v in pod("kvweave")["volumes"]),
    }
    assert vllm["securityContext"] == container("kvweave")["securityContext"] and is_pinned(vllm["image"])
    assert vllm["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert document(KUBERNETES / "vllm" / "kustomization.yaml")["components"] == [
        "../components/gpu",
        "../components/vllm",
    ]

    data = {**environment("kvweave"), **given["data"]}
    assert ours(given["data"]) <= SETTINGS
    settings = settings_of(data, monkeypatch)
    assert settings.generator and f"--port={urlsplit(settings.generator.url).port}" in vllm["command"]
    told = {each["name"]: each for each in vllm["env"]}
    assert urlsplit(told["KVWEAVE_BASE_URL"]["value"]).port == settings.port
    for name in ("KVWEAVE_MODEL", "KVWEAVE_DTYPE"):
        assert told[name]["valueFrom"]["configMapKeyRef"] == {"name": "kvweave", "key": name} and name in data
    assert "$(KVWEAVE_MODEL)" in vllm["command"] and "--dtype=$(KVWEAVE_DTYPE)" in vllm["command"]
    assert "--host=127.0.0.1" in vllm["command"], "it asks nobody for a key"
    transfer = json.loads(told["VLLM_TRANSFER"]["value"])
    Deployment(f"{VERSIONS[-1]}.0", transfer["kv_role"], transfer["kv_load_failure_policy"]).check()
    assert transfer["kv_connector_module_path"].partition(".")[0] == vllm_kvweave.__name__


def plan_of(folder: Path) -> Plan:
    return document(folder / "kustomization.yaml")


def test_a_gpu_is_given_to_containers_that_exist() -> None:
    kinds = {each["kind"] for each in WORKLOADS.values()}
    for patch in document(KUBERNETES / "components" / "gpu" / "kustomization.yaml")["patches"]:
        plan = document(KUBERNETES / "components" / "gpu" / patch["path"])
        assert plan["kind"] == patch["target"]["kind"]
        assert plan["kind"] in kinds
        (given,) = plan["spec"]["template"]["spec"]["containers"]
        assert given["resources"]["limits"] == {"nvidia.com/gpu": 1}
        assert {given["name"]} == {container(name)["name"] for name in WORKLOADS}
