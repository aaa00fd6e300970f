"""Quality against full prefill: questions over policies, ratios and codecs, and what to choose. Prints nothing."""
