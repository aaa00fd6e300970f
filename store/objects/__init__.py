"""Blobs in object storage: S3, GCS, Azure, or a folder. Knows not what the numbers of a frame mean."""
