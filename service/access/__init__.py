"""Who may do what: tenants, keys, roles, quotas, rates."""
