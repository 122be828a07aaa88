"""Fitted numbers: one file a GPU, a versioned schema with provenance, and the way to numbers for any GPU."""
