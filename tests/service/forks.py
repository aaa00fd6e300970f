"""Runs `kvweave` in forks of a process that has libraries and model loaded: `python -m tests.service.forks`."""

import os
import sys

from service import application, cli
from service.app import composition
from service.documents import ingest
from service.settings import Settings
from tests.jumping_clock import let_clock_jump
from tests.nursery import serve
from tests.service.checkpoints import loaded_once
from tests.service.lent import built_now

JUMPING = "TEST_CLOCK_JUMPS"  # in the environment of a command whose clock jumps, and which tidies up whenever it can


def main(*arguments: str) -> None:
    """As the command would, in this process."""
    sys.argv = ["kvweave", *arguments]
    if JUMPING in os.environ:
        let_clock_jump()
        ingest.IDLE_S, ingest.PAUSE_S = 0.05, 0.1
    cli.main()


if __name__ == "__main__":
    application.application = built_now(application.application)
    composition.load = loaded_once
    for chosen in ({}, {"device": "cpu", "dtype": "float32"}):
        composition.compose_model(Settings.model_validate({**chosen, "store": "mem://"}))
    serve(main)
