"""Lowering: a workload becomes what one GPU runs: formats, fused or eager kernels, parallel layout."""
