"""The REST interface: routes, and the bodies that they take and give. Retrieves nothing and computes nothing."""
