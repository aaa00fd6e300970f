"""Takes a checkpoint or refuses it, with the reason: loads, runs, compares and identifies it. Answers nobody."""
