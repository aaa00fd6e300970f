"""Documents on their way into the service: accepted, cut, computed, served. One worker does it."""
