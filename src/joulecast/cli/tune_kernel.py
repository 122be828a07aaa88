"""The part of `joulecast tune` that builds kernels: built-in operators and the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.cli import options
from joulecast.errors import InputError, shortened

if TYPE_CHECKING:
    from joulecast.reports.tables import Block
    from joulecast.tuning.kernelspec import KernelSpec
    from joulecast.tuning.model_wide import ModelTuning, Part
    from joulecast.tuning.result import TuningResult


def spec_of(what: str, sizes: Mapping[str, Any]) -> KernelSpec:
    """The spec of a built-in operator, or of ``module:attribute``, which is imported and so run.

    Raises
    ------
    InputError
        For an unknown operator, a module that can't be imported, or an attribute that is no spec.
    """
    from joulecast.tuning import operators
    from joulecast.tuning.user_kernel import imported

    if ":" in what:
        if sizes:
            raise InputError("--size is of built-in operators: a kernel of your own has its sizes in its spec")
        return imported(what)
    return operators.operator(what, **sizes)


def sizes(texts: list[str] | None) -> dict[str, Any]:
    """Sizes from ``--size``, several apart by commas."""
    split = [part.strip() for text in texts or () for part in text.split(",")]
    found: dict[str, Any] = {}
    for name, value in options.pairs("--size", split, example="m=4096").items():
        found[name] = value if name == "dtype" else options.whole("--size", value, minimum=0, example="m=4096")
    return found


def run(
    what: str, gpu: str | None, given: Mapping[str, Any], kept: Mapping[str, Any],
    tell: Callable[[str, float], None],
) -> TuningResult:  # fmt: skip
    """Tune one kernel.

    Parameters
    ----------
    what : str
        Operator, or module:attribute.
    gpu : str or None
    given : mapping
        Texts of the flags.
    kept : mapping
        Values of the flags that all searches share.
    tell : callable

    Raises
    ------
    InputError
        For a flag that can't be used as given.
    """
    if gpu is None:
        raise InputError("--gpu says what to compile for, such as --gpu h100")
    from joulecast.tuning.kernel import METERS, tune_kernel

    meter = options.one_of("--meter", given["meter"], METERS) or "model"
    shared: dict[str, Any] = {
        "slack": kept["slack"], "objective": kept["objective"], "baseline": kept["baseline"], "seed": kept["seed"],
    }  # fmt: skip
    measured = {name: kept[name] for name in ("strategy_name", "evaluations", "readings", "log", "settings")}
    if meter == "model":
        asked = {
            "--log": kept["log"], "--readings": kept["readings"], "--evaluations": kept["evaluations"],
            "--set": kept["settings"], "--strategy": kept["strategy_name"] != "race",
        }  # fmt: skip
        refused = [flag for flag, value in asked.items() if value]
        if refused:
            said = "nothing is timed or read with the model meter; --cache keeps what compiles"
            raise InputError(f"{', '.join(refused)}: {said}")
        measured = {}
    return tune_kernel(
        spec_of(what, sizes(given["size"])), gpu, meter=meter,
        configs=options.whole("--configs", given["configs"], example="200") or 200,
        meter_file=given["meter_file"], clocks_mhz=given["clocks_mhz"], power_limits_w=given["power_limits_w"],
        residency=options.one_of("--residency", given["residency"], ("loop", "stream")) or "loop",
        check=options.one_of("--check", given["check"], ("winners", "all", "none")) or "winners",
        cache=given["cache"], workers=options.whole("--workers", given["workers"]) or 0,
        timeout_s=options.real("--timeout", given["timeout"], "seconds", example="60") or 60.0,
        tell=tell, **shared, **measured,
    )  # fmt: skip


def writable(path: Path | None) -> None:
    """That a file of winners can be written, before anything is searched."""
    if path is not None and not path.parent.is_dir():
        raise InputError(f"no folder {shortened(path.parent)} to write the winners in")
    if path is not None:
        from joulecast.writing import check_writable

        check_writable(path)
        if path.exists():
            from joulecast.tuning.exits.winners import read_winners

            read_winners(path)


def run_model(
    model: str, gpu: str | None, given: Mapping[str, Any], kept: Mapping[str, Any],
    tell: Callable[[str, float], None],
) -> ModelTuning:  # fmt: skip
    """Tune the operators of a model that matter; arguments as `run`."""
    if gpu is None:
        raise InputError("--gpu says what to compile for, such as --gpu h100")
    from joulecast.tuning.kernel import METERS
    from joulecast.tuning.model_wide import tune_model

    if given["size"]:
        raise InputError("--size is of one operator: a model brings the sizes of all")
    request = {
        "batch": options.whole("--batch", given["batch"]),
        "prompt_tokens": options.whole("--prompt", given["prompt"], example="512"),
        "generate_tokens": options.whole("--generate", given["generate"], minimum=0, example="128"),
    }
    return tune_model(
        model, gpu, top=options.whole("--top", given["top"], example="4") or 4,
        configs=options.whole("--configs", given["configs"], example="40") or 40, slack=kept["slack"],
        meter=options.one_of("--meter", given["meter"], METERS) or "model", cache=given["cache"],
        workers=options.whole("--workers", given["workers"]) or 0,
        timeout_s=options.real("--timeout", given["timeout"], "seconds", example="60") or 60.0,
        check=options.one_of("--check", given["check"], ("winners", "all", "none")) or "winners",
        seed=kept["seed"], tell=tell, **{name: value for name, value in request.items() if value is not None},
    )  # fmt: skip


#: Operators that the page of a model shows.
_SHOWN = 8


def model_page(whole: ModelTuning) -> list[Block]:
    """The page of a model."""
    from joulecast.cli.page import question
    from joulecast.reports import text
    from joulecast.reports.tables import Facts, Table

    gains = {id(gain.part): gain for gain in whole.gains}
    rows = []
    for part in whole.parts[:_SHOWN]:
        gain = gains.get(id(part))
        ratios = ("", "", "") if gain is None else (
            _ratio(gain.energy_ratio), _ratio(gain.time_ratio), _ratio(gain.over_fastest))  # fmt: skip
        said = "; ".join(one for one in (_sizes(part), part.why) if one)
        rows.append((part.operator or part.kind, text.percent(part.energy_j / whole.energy_j), *ratios, said))
    heads = ("operator", "share", "energy", "time", "vs fastest", "sizes, or why it was not tuned")
    spent = f"{text.duration(whole.time_s)}, {text.energy(whole.energy_j)}"
    facts = [
        ("result", (whole.verdict,)),
        ("model", (question(whole.model, whole.info), f"on {whole.gpu}:", spent)),
        ("tuned", (f"{len(whole.gains)} operators with {text.percent(whole.tuned_share)} of the energy,",
                   f"which save {text.energy(whole.saved_j)} against default tiles")),
    ]  # fmt: skip
    chosen = [
        (
            gain.part.operator,
            (f"{_sizes(gain.part)}:", *(f"{name}={value}" for name, value in gain.found.chosen.items())),
        )
        for gain in whole.gains
    ]
    notes = [("failed", (f"{name}: {why}",)) for name, why in whole.failed.items()]
    said = "energy and time are against the default tiles of the same Triton kernel, applied to the energy of the"
    notes.append(("note", (f"{said} framework's own; whether the Triton kernel beats that one is not said",)))
    blocks: list[Block] = [Facts(tuple(facts)), Table(heads, tuple(rows), "lrrrrl", elastic=5)]
    return [*blocks, *([Facts(tuple(chosen))] if chosen else []), Facts(tuple(notes), "dim", 12)]


def _sizes(part: Part) -> str:
    return " ".join(f"{size}={value}" for size, value in part.sizes.items() if size != "dtype")


def model_rows(whole: ModelTuning) -> list[dict[str, Any]]:
    """One mapping an operator."""
    return [
        {name: value for name, value in row.items() if not isinstance(value, dict | list)}
        for row in whole.to_dict()["operators"]
    ]


def _ratio(value: float) -> str:
    return f"{100.0 * (value - 1.0):+.1f} %"
