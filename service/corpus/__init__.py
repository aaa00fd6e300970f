"""The way from an upload to a document that serves, and its chunks' caches: durable jobs, one worker."""
