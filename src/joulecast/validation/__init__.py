"""Scores predictions of kernels and whole passes against measured tables."""
