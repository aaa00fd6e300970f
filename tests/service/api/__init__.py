"""The REST interface over a core of small fakes and real catalogs."""
