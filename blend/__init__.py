"""Models and tensors: capture, fuse, decode. Knows no documents and does no I/O."""
