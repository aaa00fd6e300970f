"""The dashboard asks for metrics and labels that the service really shows."""

import ast
import json
import re
from itertools import combinations
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.reports import ChunkReport, Report, Usage
from service.telemetry.metrics import Metrics
from store.blob_store import StorageUsage as Tier
from store.errors import Miss, MissReason
from tests.deploy.plans import DEPLOY, ROOT

BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboards" / "kvweave.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = BOARD["panels"]
QUERIES: list[str] = [target["expr"] for panel in PANELS for target in panel["targets"]]
VARIABLES = {each["name"]: each for each in BOARD["templating"]["list"]}
WIDTH = 24


def shown() -> dict[str, set[str]]:
    """Every series that a service which did a little of everything shows, with its labels."""
    metrics = Metrics()
    chunk = ChunkReport("c", "computed", Miss(MissReason.ABSENT), 1, 0, 0)
    report = Report("hybrid", 0.15, (chunk,), (), {"first_token": 1.0, "queue": 1.0})
    metrics.http(method="GET", route="/v1/query", status=200, seconds=0.1)
    metrics.answered("default", usage=Usage(1, 1, 0, 0), report=report, reason="stop")
    metrics.failed("default", error="Busy")
    metrics.uploaded("default", state="ready")
    metrics.captured("default", tokens=1, nbytes=1, seconds=1.0)
    metrics.watch_store(lambda: [Tier("ram", 1, 1, 1)])
    for name in watched():
        metrics.watch(name, "read at every scrape", read=lambda: 0.0)
    samples = [
        sample for family in text_string_to_metric_families(metrics.render()[0].decode()) for sample in family.samples
    ]
    return {
        name: {key for each in samples if each.name == name for key in each.labels}
        for name in {s.name for s in samples}
    }


def watched() -> set[str]:
    """The gauges that the core adds when it starts."""
    tree = ast.parse((ROOT / "service" / "app" / "core.py").read_text(encoding="utf-8"))
    return {
        ast.literal_eval(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "watch"
    }


@pytest.fixture(scope="module")
def series() -> dict[str, set[str]]:
    return shown()


def metrics_in(query: str) -> set[str]:
    return set(re.findall(r"\b(?:kvweave|process|python)_\w+", query))


def labels_in(query: str) -> set[str]:
    grouped = {name for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", query) for name in re.findall(r"\w+", group)}
    return grouped | set(re.findall(r'[{,](\w+)[=!]~?"', query))


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_what_the_service_shows(query: str, series: dict[str, set[str]]) -> None:
    names = metrics_in(query)
    assert names
    assert names - series.keys() == set()
    assert labels_in(query) <= set.intersection(*(series[name] for name in names))


def test_every_metric_of_the_service_is_on_the_board(series: dict[str, set[str]]) -> None:
    asked = {re.sub(r"_(bucket|sum|count)$", "", name) for query in QUERIES for name in metrics_in(query)}
    ours = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series if name.startswith("kvweave_")}
    assert ours - asked == set()


def test_a_legend_names_labels_that_its_query_keeps() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels_in(target["expr"])


def test_every_variable_is_defined() -> None:
    text = json.dumps(PANELS)
    assert set(re.findall(r"\$\{?([a-z]\w*)", text)) == VARIABLES.keys()
    assert VARIABLES["tenant"]["query"]["query"] == "label_values(kvweave_answers_total, tenant)"


def test_no_panel_lies_over_another() -> None:
    def spot(panel: dict[str, Any]) -> tuple[range, range]:
        grid = panel["gridPos"]
        return range(grid["x"], grid["x"] + grid["w"]), range(grid["y"], grid["y"] + grid["h"])

    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert all(spot(panel)[0].stop <= WIDTH for panel in PANELS)
    for one, other in combinations(PANELS, 2):
        assert not all(set(a) & set(b) for a, b in zip(spot(one), spot(other), strict=True))
