"""Puts a prompt in place: records loaded, rows chosen and computed anew. Knows no queue, and makes no records."""
