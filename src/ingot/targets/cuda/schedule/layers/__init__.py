"""What joins the kernels of a decoder's layers: attention before the layer's products, and layers that are alike."""
