"""Files become drafts: one file per format. Knows no chunking, no index and no catalog; `files` is the way in."""
