"""What every catalog promises, of PostgreSQL. See `Contract`."""

from tests.retriever.catalogs import Postgres
from tests.retriever.test_catalog import CatalogContract
from tests.retriever.test_catalog_unready import UnreadyContract
from tests.retriever.test_catalog_uploads import UploadContract
from tests.retriever.test_catalog_views import ViewContract


class TestPostgresCatalog(Postgres, CatalogContract):
    pass


class TestPostgresUnready(Postgres, UnreadyContract):
    pass


class TestPostgresUploads(Postgres, UploadContract):
    pass


class TestPostgresViews(Postgres, ViewContract):
    pass
