"""Training: from a model, a recipe and a layout to the time, watts, joules and memory of a step and of a whole run."""
