"""Quality against full prefill: suites of questions, run over policies, ratios and codecs, and what to choose."""

MULTIHOP = "multihop"  # the built-in suite
