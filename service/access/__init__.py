"""Who asks, and how much at once: principals, keys, rates, places, domains, CPU time; files for their owner alone."""
