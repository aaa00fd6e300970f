"""Keys and catalogs, their backups and moves."""
