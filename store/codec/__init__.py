"""Records to blobs and back: specs, quantization, frames, the blob's form. Knows no medium."""
