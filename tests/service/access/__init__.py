"""Keys, rates, backups."""
