"""A corpus of files to a ready store: read, cut, indexed, computed, stored. A rerun does what is missing or changed."""
