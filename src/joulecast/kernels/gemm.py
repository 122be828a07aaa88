"""Matrix multiplies."""
