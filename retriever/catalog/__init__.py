"""The truth about documents, chunks, uploads, metadata and vectors, with search by words. One catalog per tenant."""
