"""Triton kernels of the built-in operators: imported only where Triton is installed."""
