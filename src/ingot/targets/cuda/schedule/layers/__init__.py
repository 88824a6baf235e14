"""What joins the kernels of a decoder's layer: attention and the products behind it."""
