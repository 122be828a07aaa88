"""Physics: work becomes time, duty becomes watts, a cap becomes a clock."""
