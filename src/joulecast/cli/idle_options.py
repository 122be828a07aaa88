"""Options of training that change nothing by themselves: what each goes with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from joulecast.errors import InputError


def _more_than(least: float) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int | float) and value > least


#: By option: the value for which it says something (any, where None), what it goes with, in words, and which options
#: of which values those are: one is enough.
_GO_WITH: tuple[tuple[str, Any, str, Mapping[str, Callable[[Any], bool]]], ...] = (
    ("lora_rank", None, "--trainable lora", {"trainable": lambda value: value == "lora"}),
    ("checkpointed_layers", None, "--checkpointing", {"checkpointing": lambda value: value != "none"}),
    ("shard_group", None, "--zero", {"zero": _more_than(0)}),
    ("schedule", None, "--pp of 2 or more", {"pp": _more_than(1)}),
    ("chunks", None, "--pp of 2 or more", {"pp": _more_than(1)}),
    ("stage_layers", None, "--pp of 2 or more", {"pp": _more_than(1)}),
    ("schedule", "interleaved", "--chunks of 2 or more", {"chunks": _more_than(1)}),
    ("sequence_parallel", True, "--tp of 2 or more", {"tp": _more_than(1)}),
    ("overlap", None, "--tp of 2 or more", {"tp": _more_than(1)}),
    ("epochs", None, "--samples or --tokens", {name: lambda _: True for name in ("samples", "tokens")}),
    ("single_process", True, "--gpus of 2 or more", {"gpus": _more_than(1)}),
    ("gpus_per_node", None, "--gpus of 2 or more", {"gpus": _more_than(1)}),
)

#: GPUs of a node, where nothing else is said.
_OF_A_NODE = 8


def refuse_idle(asked: Mapping[str, Sequence[Any]]) -> None:
    """Refuse options of training that would change nothing.

    Parameters
    ----------
    asked : mapping of str to sequence
        Values of each option that was given, by its name in Python.

    Raises
    ------
    InputError
        If an option has a value that counts for no value of what it goes with.
    """
    for name, counts, words, needed in _GO_WITH:
        given = asked.get(name, ())
        if not (given if counts is None else counts in given):
            continue
        if not any(meets(value) for other, meets in needed.items() for value in asked.get(other, ())):
            flag = "--" + name.replace("_", "-") + (f" {counts}" if isinstance(counts, str) else "")
            raise InputError(f"{flag} changes nothing without {words}")
    if asked.get("node_link_gb_s"):
        node = min((one for one in asked.get("gpus_per_node", ()) if _more_than(0)(one)), default=_OF_A_NODE)
        if not any(_more_than(node)(gpus) for gpus in asked.get("gpus", ())):
            raise InputError(f"--node-link changes nothing without --gpus beyond a node of {node:g}")
