"""Programs as modules of torch, and in torch.export's form."""
