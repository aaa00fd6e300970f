"""Vectors of texts: an encoder of this process, or a service over HTTP."""
