"""What is physically possible: number formats, units and the one place of plausibility checks."""
