"""`joulecast explain`: what bounds a run, and what the cheapest changes to it would save."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast.cli import options, with_options
from joulecast.cli.flags import option, switch
from joulecast.cli.output import Answer, chosen_format, give
from joulecast.errors import InputError, shortened

if TYPE_CHECKING:
    from joulecast.reports.tables import Block
    from joulecast.scenarios.explain import Explanation


def explain(
    source: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A hub name, config.json, operation list or trace.", show_default=False),
    ],
    gpu: Annotated[str, option("--gpu", "NAME", "GPU.")],
    training: Annotated[bool, switch("--train", "Of a training run; else of an inference.")] = False,
    batch: Annotated[str | None, option("--batch", "N", "Sequences or images at once [1].")] = None,
    prompt: Annotated[str | None, option("--prompt", "N", "Prompt tokens a sequence.")] = None,
    generate: Annotated[str | None, option("--generate", "N", "Tokens to generate a sequence.")] = None,
    dtype: Annotated[str | None, option("--dtype", "NAME", "Format of the model [bf16].")] = None,
    with_: Annotated[
        list[str] | None, option("--with", "OPTION=VALUE", "Any other option of predict or train, as gpus=8.")
    ] = None,
    slack: Annotated[str, typer.Option("--slack", metavar="SHARE", help="Time that may be lost.")] = "0.05",
    top: Annotated[str, typer.Option("--top", metavar="N", help="Changes to show.")] = "3",
    set_: options.Changes = None,
    coefficients: options.Coefficients = None,
    json: options.Json = False,
    csv: options.Csv = False,
    output: options.Output = None,
) -> None:
    """What bounds a run, and what the cheapest changes to it would save.

    joulecast explain meta-llama/Llama-3.1-8B --gpu h100 --batch 8 --prompt 2048 --generate 256

    joulecast explain meta-llama/Llama-3.1-8B --gpu h100 --train --with gpus=8 --with zero=3 --with precision=bf16
    --with checkpointing=full --with global_batch=64
    """
    form = chosen_format(json, csv, output)
    options.use_coefficients(coefficients)
    shown = options.whole("--top", top, example="3") or 3
    room = options.real("--slack", slack, "parts of the time", zero=True, example="0.05") or 0.0
    asked: dict[str, Any] = {
        "batch": options.whole("--batch", batch),
        "prompt_tokens": options.whole("--prompt", prompt, example="2048"),
        "generate_tokens": options.whole("--generate", generate, minimum=0, example="256"),
        "dtype": dtype,
        "changes": options.changes(set_) or None,
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    if training and set(asked) - {"changes"}:
        raise InputError("--batch, --prompt, --generate and --dtype ask for an inference: with --train give "
                         "--with micro_batch=..., --with sequence_tokens=..., --with precision=...")  # fmt: skip
    asked |= _with(with_, asked)

    import joulecast as jc

    found = jc.explain(source, gpu, training=training, slack=room, **asked)
    give(
        Answer(lambda: _page(found, shown, room), lambda: _document(found, source, gpu), lambda: _rows(found)),
        form,
        output,
    )


def add_to(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("explain")(explain)


def _with(texts: list[str] | None, given: dict[str, Any]) -> dict[str, Any]:
    """What ``--with`` asks for."""
    found: dict[str, Any] = {}
    for spelt, text in options.pairs("--with", texts, example="gpus=8").items():
        name = with_options.argument(spelt)
        if name in found or name in given:
            raise InputError(f"{shortened(name, 40)} is given twice")
        found[name] = with_options.value(text)
    return found


def _rows(found: Explanation) -> list[dict[str, Any]]:
    from joulecast.scenarios.explain import EFFORTS

    return [
        {
            "change": one.change.says,
            "lever": one.change.lever,
            "effort": EFFORTS[one.change.effort],
            "time_ratio": one.time_ratio,
            "energy_ratio": one.energy_ratio,
            "time_s": one.outcome.time_s,
            "energy_j": one.outcome.energy_j,
            "caution": one.change.caution,
        }
        for one in found.advice
    ]


def _document(found: Explanation, source: str, gpu: str) -> dict[str, Any]:
    from joulecast import __version__

    return {
        "joulecast": __version__,
        "workload": source,
        "gpu": gpu,
        "time_s": found.base.time_s,
        "energy_j": found.base.energy_j,
        "work": found.base.work,
        "bound_by": dict(found.base.bound_by),
        "changes": _rows(found),
        "tried": found.tried,
        "refused": dict(found.refused),
    }


def _page(found: Explanation, shown: int, slack: float) -> list[Block]:
    from joulecast.reports import text
    from joulecast.reports.tables import Facts, Table
    from joulecast.scenarios.explain import EFFORTS

    base = found.base
    bounds = sorted(base.bound_by.items(), key=lambda item: -item[1])
    takes = f"{text.duration(base.time_s)}, {text.energy(base.energy_j)}"
    blocks: list[Block] = [
        Facts(
            (
                ("takes", (takes,)),
                ("bound by", tuple(f"{name} {text.percent(share)}" for name, share in bounds)),
            )
        )
    ]
    if not found.advice:
        says = f"none of {found.tried} changes saves 1 % of the energy within {text.percent(slack)} more time"
        return [*blocks, Facts((("advice", (says,)),))]
    rows = tuple(
        (one.change.says, _change(one.time_ratio), _change(one.energy_ratio), EFFORTS[one.change.effort])
        for one in found.advice[:shown]
    )
    blocks.append(Table(("change", "time", "energy", "takes"), rows, "lrrl"))
    cautions = tuple((one.change.lever, (one.change.caution,)) for one in found.advice[:shown] if one.change.caution)
    if cautions:
        blocks.append(Facts(cautions, "dim"))
    more = len(found.advice) - shown
    if more > 0:
        blocks.append(Facts((("", (f"{more} more: --top {len(found.advice)}",)),), "dim"))
    return blocks


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"
