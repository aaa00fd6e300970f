"""The truth about documents, chunks, their metadata and vectors. One catalog belongs to one tenant."""
