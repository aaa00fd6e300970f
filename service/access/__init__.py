"""Who asks, and how much at once: principals, spelling of keys, rates, places, domains. Knows no database, no HTTP."""
