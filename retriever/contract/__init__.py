"""What every catalog promises, one file for each subject; `catalog` joins them."""
