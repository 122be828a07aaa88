"""Kernel families: an operation becomes launches with tile, grid, waves, arithmetic and bytes at each level."""
