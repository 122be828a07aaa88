"""Fits coefficients from measured tables."""
