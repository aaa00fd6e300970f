"""How stored rows come into a context: unpacked, turned to their slots, written. Knows no model, chunk or store."""
