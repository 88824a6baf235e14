"""Rules of the layers of neural networks."""
