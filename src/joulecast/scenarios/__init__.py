"""Scenarios: what people ask, answered from workloads, kernels and physics: inference and single kernels."""
