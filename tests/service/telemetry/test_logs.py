"""One form for all lines, and nothing in them that a user could forge or that quotes more than a little of a text."""

import io
import json
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.telemetry import logs
from service.telemetry.logs import Style, fields, guard, note, noting, request_id, setup_logs

log = logging.getLogger("service.test")


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def test_a_line_for_machines_has_the_message_the_fields_and_the_request(out: io.StringIO) -> None:
    setup_logs("info", "json", stream=out)
    with noting("id-1"):
        log.info("stored", extra=fields(chunks=3, seconds=0.25, tenant="acme", detail=None, level="forged"))
    line = json.loads(out.getvalue())
    assert {
        "message": "stored",
        "level": "info",
        "request_id": "id-1",
        "chunks": 3,
        "seconds": 0.25,
    }.items() <= line.items()
    assert line["tenant"] == "acme" and line["detail"] is None and line["logger"] == "service.test"


def test_a_line_for_people_is_keys_and_values(out: io.StringIO) -> None:
    setup_logs("info", "text", stream=out)
    log.info("stored", extra=fields(chunks=3, name="two words", empty="", share=0.123456789))
    time, level, rest = out.getvalue().rstrip("\n").split(" ", 2)
    assert time.endswith("Z") and level == "INFO"
    assert rest == 'stored logger=service.test chunks=3 name="two words" empty="" share=0.123457'


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(), style=st.sampled_from(["text", "json"]))
def test_no_text_makes_a_second_line(text: str, style: Style) -> None:
    out = io.StringIO()
    setup_logs("info", style, stream=out)
    log.info("said %s", text, extra=fields(value=text))
    lines = out.getvalue().splitlines()
    assert len(lines) == 1 and lines[0].isprintable()


def test_no_message_of_an_exception_passes_for_a_line(out: io.StringIO) -> None:
    setup_logs("info", "text", stream=out)
    try:
        raise ValueError("x\n2026-01-01T00:00:00.000Z INFO request\r\x1b[2J" + "secret " * 100)
    except ValueError as error:
        log.error("unhandled exception", exc_info=error)
    head, *rest = out.getvalue().splitlines()
    assert head.endswith("unhandled exception logger=service.test")
    assert rest and all(line.startswith("    ") and line.isprintable() for line in rest)
    assert sum(line.count("secret") for line in rest if "Error:" in line) < 30


def test_a_traceback_tells_causes_and_members_of_groups(out: io.StringIO) -> None:
    setup_logs("info", "json", stream=out)
    try:
        try:
            raise ExceptionGroup("both", [KeyError("a"), OSError("b")])
        except ExceptionGroup as group:
            raise RuntimeError("outer") from group
    except RuntimeError as error:
        log.error("unhandled exception", exc_info=error)
    trace = json.loads(out.getvalue())["traceback"]
    assert [word in trace for word in ("KeyError", "OSError", "ExceptionGroup", "test_logs.py")] == [True] * 4
    assert trace.index("ExceptionGroup") < trace.index("RuntimeError")


def test_what_an_exception_says_is_told_where_debugging_is(out: io.StringIO) -> None:
    """It may quote what a user wrote."""
    for level in ("info", "debug"):
        setup_logs(level, "text", stream=out)
        log.error("unhandled exception", exc_info=ValueError(f"a question under {level}"))
    assert "under info" not in out.getvalue() and "under debug" in out.getvalue()


def test_an_exception_that_is_its_own_cause_ends(out: io.StringIO) -> None:
    setup_logs("info", "text", stream=out)
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    log.error("unhandled exception", exc_info=first)
    assert out.getvalue().count("ValueError") == 2


@given(st.text())
def test_a_guarded_text_is_short(text: str) -> None:
    kept = guard(text)
    assert isinstance(kept, str) and len(kept) <= logs.LETTERS and (len(text) > logs.LETTERS or kept == text)


def test_only_scalars_pass() -> None:
    assert guard(["a document"]) == "<list>" and guard({"text": "a document"}) == "<dict>"
    assert guard(b"bytes") == "<bytes>" and guard(None) is None and guard(True) is True


def test_numbers_that_json_has_not_are_words(out: io.StringIO) -> None:
    setup_logs("info", "json", stream=out)
    log.info("odd", extra=fields(a=float("nan"), b=float("-inf"), c=1.5))
    line = json.loads(out.getvalue())
    assert (line["a"], line["b"], line["c"]) == ("nan", "-inf", 1.5)


def test_notes_belong_to_their_request() -> None:
    note(lost=1)
    with noting("outer") as outer:
        note(tenant="acme")
        with noting("inner") as inner:
            note(tokens=3)
            assert request_id.get() == "inner"
        note(fuse_ms=2.0)
    assert (outer.fields, inner.fields) == ({"tenant": "acme", "fuse_ms": 2.0}, {"tokens": 3})
    assert request_id.get() == ""


def test_the_server_speaks_in_our_form_and_its_access_log_is_off(out: io.StringIO) -> None:
    setup_logs("info", "json", stream=out)
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7, extra={"color_message": "\x1b[1m"})
    logging.getLogger("uvicorn.access").info('%s "%s"', "127.0.0.1", "GET /v1/search?q=secret")
    (line,) = out.getvalue().splitlines()
    assert json.loads(line)["message"] == "Started server process [7]" and "color" not in line
    assert not logging.getLogger("uvicorn.access").hasHandlers()


def test_what_is_told_once_the_server_does_not_tell_again(out: io.StringIO) -> None:
    setup_logs("info", "text", stream=out)
    error = ValueError("once")
    logs.tell_once(error)
    logging.getLogger("uvicorn.error").error("Exception in ASGI application\n", exc_info=error)
    assert out.getvalue() == ""
    logging.getLogger("uvicorn.error").error("Exception in ASGI application\n", exc_info=KeyError("another"))
    assert "KeyError" in out.getvalue()


def test_others_are_heard_from_warning_on_and_a_second_setup_replaces_the_first(out: io.StringIO) -> None:
    setup_logs("debug", "text", stream=io.StringIO())
    setup_logs("info", "text", stream=out)
    logging.getLogger("httpx").info("HTTP Request: POST /embed")
    logging.getLogger("httpx").warning("slow")
    log.debug("prompt")
    log.info("once")
    assert [line.split()[2] for line in out.getvalue().splitlines()] == ["slow", "once"]


def test_an_unknown_level_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match=r"one of .*info.*got 'loud'"):
        setup_logs("loud", "text")
