"""Finds configurations of a kernel that are as fast and use fewer joules, and claims no saving that isn't there."""

from joulecast.tuning.evaluator import Check, Evaluator
from joulecast.tuning.space import Config, Constraint, Space, Tunable

__all__ = ["Check", "Config", "Constraint", "Evaluator", "Space", "Tunable"]
