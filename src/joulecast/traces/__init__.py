"""Profiler traces: measured times, and the power and energy behind them."""
