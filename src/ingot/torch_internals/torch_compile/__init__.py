"""What a backend of torch.compile needs of torch."""
