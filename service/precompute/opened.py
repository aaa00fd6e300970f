"""All that a run over a corpus needs, open while it runs. Starts no service."""

import fcntl
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from service.access.control import Control
from service.access.errors import AccessError
from service.access.moving import CONTROL
from service.access.private import private_file, private_folder
from service.composition import compose_loaded, compose_store
from service.ingest.rules import CollectionRules
from service.precompute.work import Bench
from service.settings import Settings
from service.tenants import TENANTS, tenant_over
from service.trust import trusted_press


@contextmanager
def opened(settings: Settings, name: str, *, collection: str, rules: CollectionRules) -> Generator[Bench]:
    """All that a run needs. A service may run on the same folder; a second run on the same tenant may not."""
    with ExitStack() as stack:
        folder = settings.data / TENANTS / name
        private_folder(settings.data)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = folder / "precompute.lock"
        private_file(lock)
        held = stack.enter_context(lock.open("rb"))
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AccessError(f"another precompute works for tenant {name!r}: wait for its end") from None
        control = Control(settings.data / CONTROL)
        stack.callback(control.close)
        store = stack.enter_context(compose_store(settings))
        loaded = compose_loaded(settings)
        stack.callback(loaded.press.engine.close)
        press = trusted_press(loaded.press, settings.data / TENANTS, library=loaded.library, store=store)
        library = loaded.library(folder)
        stack.callback(library.catalog.close)
        tenant = tenant_over(name, library, store=store, press=press, control=control)
        yield Bench(tenant, press, store, collection, rules)
        library.maintain()
