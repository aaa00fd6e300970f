"""Tests of a service whose keys and catalogs are in PostgreSQL."""
