"""Keys and catalogs where they are kept in PostgreSQL. Needs the extra `postgres`."""
