"""The CUDA target: CUDA C++ kernels, compiled to cubins, and a C host library that uses the driver."""
