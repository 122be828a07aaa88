"""From a kernel and its configurations to compiled code and what it will do, without a GPU."""
