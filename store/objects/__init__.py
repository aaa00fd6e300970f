"""Blobs in object storage: S3, GCS, Azure, or a folder. Knows nothing of what a frame holds."""
