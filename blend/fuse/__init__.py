"""What makes and uses records: capture, the choice of rows to compute anew, loading, the fuse itself."""
