"""The REST interface: routes, their models, and nothing that computes."""
