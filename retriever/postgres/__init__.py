"""The catalog where its database is PostgreSQL: connections, and what differs from SQLite. An extra: `postgres`."""
