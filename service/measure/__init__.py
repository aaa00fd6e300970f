"""What reuse is worth for one model on one machine: measured with chunks in a real store, and said in a sentence."""
