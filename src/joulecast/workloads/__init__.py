"""Workloads: what a model computes, as a columnar table of operations with no GPU in it."""
