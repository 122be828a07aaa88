"""Sweeps: many questions at once, what is best among them, and what a little more of each number would give."""
