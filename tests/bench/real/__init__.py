"""The tables on a real, pretrained model and real prose: what `make real` and `make real-grid` measure."""
