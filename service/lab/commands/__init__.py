"""The commands `eval`, `bench` and `demo`: options in, tables, pages or JSON out. Measure nothing themselves."""
