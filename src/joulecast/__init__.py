"""joulecast: the time, watts and joules of an AI workload on a GPU, before you run it."""

__version__ = "0.1.0"
