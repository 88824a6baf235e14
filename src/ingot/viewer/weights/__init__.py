"""Every number of a weight: tensors of a view by number, read in blocks, sent or saved."""
