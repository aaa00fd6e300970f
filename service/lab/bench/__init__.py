"""Speeds and sizes of a model and a store on this machine, and whether reuse pays there. Judges no answers."""
