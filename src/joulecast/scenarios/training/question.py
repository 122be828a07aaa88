"""A training question as plain arguments: told apart into model, recipe, layout and run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.lowering.recipe import PRECISIONS, Recipe
from joulecast.scenarios.training.layout import Layout
from joulecast.workloads.sources import open_workload
from joulecast.workloads.table import Workload

RECIPE = tuple(one.name for one in fields(Recipe))
LAYOUT = tuple(one.name for one in fields(Layout))

#: What a model is asked for, by our name: the name in a request for a workload.
MODEL: Mapping[str, str] = MappingProxyType(
    {
        "micro_batch": "batch",
        "sequence_tokens": "prompt_tokens",
        "image_size": "image_size",
        "weight_dtype": "weight_dtype",
    }
)

#: Arguments of `joulecast.scenarios.training.train.train` beside these.
RUN = (
    "global_batch", "steps", "samples", "tokens", "epochs", "launch_mode", "attention", "changes", "clock_mhz",
    "power_limit_w", "host_us_per_launch", "input_samples_per_s", "copied_in", "site", "scales", "ignore_memory",
    "exclude",
)  # fmt: skip


def told_apart(options: Mapping[str, Any]) -> tuple[dict[str, Any], Recipe, Layout, dict[str, Any]]:
    """What of `options` asks for the model, the recipe, the layout, and the rest; None counts as not given.

    Raises
    ------
    UnknownNameError
        For an option that is none of theirs.
    InputError
        For a value out of bounds.
    """
    given = {name: value for name, value in options.items() if value is not None}
    known = {*RECIPE, *LAYOUT, *MODEL, *RUN}
    for name in given:
        if name not in known:
            raise UnknownNameError("option of train", name, known)
    recipe = Recipe(**{name: given[name] for name in RECIPE if name in given})
    layout = Layout(**{name: given[name] for name in LAYOUT if name in given})
    model = {MODEL[name]: given[name] for name in MODEL if name in given}
    return model, recipe, layout, {name: given[name] for name in RUN if name in given}


def forward_pass(source: Any, model: Mapping[str, Any], recipe: Recipe) -> Workload:
    """The forward pass over one micro-batch of a model, in the format of the recipe, with all its scores.

    Parameters
    ----------
    source : str, Path, Workload, mapping or list
        As for `joulecast.workload`; a workload is taken as it is.
    model : mapping
        Of a request: ``batch``, ``prompt_tokens``, ``image_size``, ``weight_dtype``.
    recipe : Recipe

    Returns
    -------
    Workload

    Raises
    ------
    InputError
        If the model can't be opened, or a ready workload is asked for with sizes.
    """
    narrow = model.get("weight_dtype")
    if narrow is not None and recipe.trainable == "all" and not recipe.frozen_layers:
        raise InputError(f"weight_dtype={shortened(narrow)} is of frozen weights: give trainable='lora' with it")
    if isinstance(source, Workload):
        if model:
            named = ", ".join(name for name, ours in MODEL.items() if ours in model)
            raise InputError(f"a workload that is ready can't be asked for with {named}: make it with them")
        return source
    return open_workload(source, **{"logits": "all", "dtype": PRECISIONS[recipe.precision].model, **model})
