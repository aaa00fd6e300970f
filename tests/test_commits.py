"""Guards the form of commits: a subject of up to 60 characters that names its part and tells one idea."""

import re
import subprocess

import pytest

from tests.architecture import ROOT

SINCE = "066ee53"  # the last commit before this rule
LENGTH = 60

_NAMED = re.compile(r"[a-z][\w.,/ -]*: \S")


def wrong_with(subject: str) -> str:
    """What is wrong with a commit's subject; empty where nothing is."""
    if len(subject) > LENGTH:
        return f"{len(subject)} characters, at most {LENGTH}: put the rest into the body"
    if not _NAMED.match(subject):
        return "it names no part: write for example 'store: refuse blobs of a newer format'"
    if ";" in subject:
        return "it tells several ideas: make a commit of each"
    return ""


def _git(*command: str) -> subprocess.CompletedProcess[str]:
    command = ("git", "-c", "safe.directory=*", *command)
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)


def test_commits_name_their_part_and_are_short() -> None:
    """Where history is cut off, as in a shallow clone, the last commit alone is looked at."""
    known = _git("merge-base", "--is-ancestor", SINCE, "HEAD").returncode == 0
    log = _git("log", "--no-merges", "--format=%h %s", f"{SINCE}..HEAD" if known else "-1")
    assert log.returncode == 0, log.stderr
    commits = (line.partition(" ")[::2] for line in log.stdout.splitlines())
    assert {commit: wrong for commit, subject in commits if (wrong := wrong_with(subject))} == {}


@pytest.mark.parametrize(
    "subject",
    ["store: " + "x" * 54, "a step is recorded whole", "store: one thing; another", "Store: refuse", "store:"],
)
def test_another_form_is_found(subject: str) -> None:
    assert wrong_with(subject)


@pytest.mark.parametrize("subject", ["store: " + "x" * 53, "docs, log: what a KL means", "service/api: refuse"])
def test_the_form_is_silent(subject: str) -> None:
    assert wrong_with(subject) == ""
