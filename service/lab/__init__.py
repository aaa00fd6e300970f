"""What measures and shows kvweave: `eval`, `bench`, `demo`. Imports the service; `service/cli.py` alone knows it."""
