"""The commands of `kvweave`, a module each."""
