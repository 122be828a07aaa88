"""Meters of energy: what a launch of a kernel costs, read from a GPU, a file or a recording, and judged."""

from joulecast.meters.reading import Load, Meter, MeterFacts, Reading

__all__ = ["Load", "Meter", "MeterFacts", "Reading"]
