"""The core that every interface serves, and where its classes are chosen. Knows no interface."""
