"""Another process at the same data folder.

python -m tests.service.truth.child identify FOLDER           answers each key on standard input
python -m tests.service.truth.child create FOLDER COUNT       so many keys; prints them
python -m tests.service.truth.child write FOLDER TENANT       changes a catalog until it is killed; prints numbers
python -m tests.service.truth.child hold FOLDER               until it is killed
"""

import sys
import time
from itertools import count
from pathlib import Path

from retriever.catalog.sqlite import SqliteCatalog
from service.access.principal import Role
from service.truth.control import Control
from service.truth.databases import hold
from tests.service.truth.folders import change_all


def say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(what: str, folder: Path, *rest: str) -> None:
    if what == "write":
        catalog = SqliteCatalog(folder / "tenants" / rest[0] / "catalog.sqlite")
        for number in count(1):
            change_all(catalog, number)
            say(number)
    if what == "hold":
        with hold(folder):
            say("held")
            time.sleep(600)
    control = Control(folder / "control.sqlite")
    if what == "create":
        control.ensure_admin(folder / "admin.key")
        for _ in range(int(rest[0])):
            say(control.create_key("acme", Role.READ)[1])
    if what == "identify":
        say("ready")
        for line in sys.stdin:
            found = control.identify(line.strip())
            say(found and f"{found.tenant} {found.role.label} {found.bound} {found.per_minute}")


main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
