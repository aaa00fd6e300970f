"""The model as blend runs it: its layers, how each attends, one pass over rows. Knows no texts."""
