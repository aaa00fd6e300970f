"""Where keys and catalogs are kept, backed up and moved: a folder or PostgreSQL. Knows no HTTP and no model."""
