"""Reads the values of flags strictly, and the flags that verbs share."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from joulecast.cli.flags import option, switch
from joulecast.errors import InputError, shortened

Source = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A hub name, config.json, ONNX model, operation list or trace.", show_default=False
    ),
]
Json = Annotated[bool, switch("--json", "Print JSON.")]
Csv = Annotated[bool, switch("--csv", "Print CSV.")]
Output = Annotated[Path | None, option("--output", "FILE", "Write to FILE: .json, .csv or .txt.")]
Changes = Annotated[
    list[str] | None, option("--set", "FIELD=VALUE", "Change a number of the GPU, such as sm_count=160.")
]
Dims = Annotated[list[str] | None, option("--dim", "NAME=SIZE", "Size of an ONNX model's dimension, such as batch=8.")]
Coefficients = Annotated[
    Path | None, option("--coefficients", "DIR", "Look here for coefficients before the shipped ones.")
]
ForecastFrom = Annotated[str | None, option("--forecast-from", "NAME", "ampere: know no newer GPU's measurements.")]


def no_own_coefficients(forecast: str | None, folder: Path | None) -> None:
    """A forecast knows nothing but its own coefficients.

    Raises
    ------
    InputError
        If both are asked for.
    """
    if forecast is not None and folder is not None:
        raise InputError("--forecast-from and --coefficients exclude each other: a forecast knows only its own")


def use_coefficients(folder: Path | None) -> None:
    """Do what ``--coefficients`` asks for, before anything is predicted.

    Raises
    ------
    InputError
        If it is no folder, or holds a file that can't be used.
    """
    if folder is not None:
        from joulecast.coefficients.users import use_coefficients as use

        use(folder)


_WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)
_REAL = re.compile(r"(?:[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})", re.ASCII)


def whole(flag: str, text: str | None, *, minimum: int = 1, example: str = "8") -> int | None:
    """The whole number that `text` spells in plain digits; None where the flag was not given.

    Raises
    ------
    InputError
        For anything else: signs, exponents, formulas, other scripts' digits, less than `minimum`.
    """
    if text is None:
        return None
    if not _WHOLE.fullmatch(text.strip()) or int(text) < minimum:
        at_least = f" of {minimum} or more" if minimum else ""
        raise InputError(f"{flag} takes a whole number{at_least} in digits, such as {example}, not {_quoted(text)}")
    return int(text)


def real(flag: str, text: str | None, unit: str, *, zero: bool = False, example: str = "1410") -> float | None:
    """The decimal number that `text` spells, above zero (or `zero` too); None where the flag was not given.

    Raises
    ------
    InputError
        For anything else: signs, exponents, NaN, infinities, units.
    """
    if text is None:
        return None
    if not _REAL.fullmatch(text.strip()) or (float(text) == 0 and not zero):
        above = "" if zero else " above zero"
        raise InputError(f"{flag} takes a number{above} in {unit}, such as {example}, not {_quoted(text)}")
    return float(text)


_DURATION = re.compile(rf"({_REAL.pattern})\s*(ms|s|min|h|d)?", re.ASCII)
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration(flag: str, text: str | None) -> float | None:
    """The time that `text` spells, above zero, in s where it names no unit; None where the flag was not given. [s]

    Raises
    ------
    InputError
        For anything else.
    """
    if text is None:
        return None
    found = _DURATION.fullmatch(text.strip())
    if not found or float(found[1]) == 0:
        raise InputError(
            f"{flag} takes a time above zero in s or with its unit (ms, s, min, h, d), such as 0.5 or 36h, "
            f"not {_quoted(text)}"
        )
    return float(found[1]) * _SECONDS[found[2] or "s"]


#: More values than this of one flag are a slip: a step too small, or a unit mistaken.
MOST_VALUES = 10_000


def numbers(
    flag: str, text: str | None, unit: str, *, example: str = "510:1410:90", zero: bool = False
) -> tuple[float, ...] | None:
    """The numbers that `text` lists (``900,1200``) or spans (``510:1410:90``); None where the flag was not given.

    A span is first:last:step and goes up by the step; the last is in it where a step meets it. Lists may hold spans.

    Parameters
    ----------
    flag : str
        Named in messages.
    text : str or None
    unit : str
        Of the numbers, for messages.
    example : str
        What would be right.
    zero : bool
        Whether 0 is one of them.

    Returns
    -------
    tuple of float or None
        Each once, in the order given.

    Raises
    ------
    InputError
        For anything but plain decimal numbers above zero, a span that goes down, or more than `MOST_VALUES`.
    """
    if text is None:
        return None
    above = "" if zero else " above zero"
    shape = f"{flag} takes a number{above} in {unit}, several apart by commas, or first:last:step such as {example}"
    found: list[float] = []
    for part in text.split(","):
        ends = [one.strip() for one in part.split(":")]
        if len(ends) not in (1, 3) or not all(_REAL.fullmatch(one) for one in ends):
            raise InputError(f"{shape}, not {_quoted(text)}")
        values = [float(one) for one in ends]
        if values[0] == 0 and not zero:
            raise InputError(f"{shape}, not {_quoted(text)}")
        if len(values) == 3:
            values = _span(flag, *values, quoted=_quoted(text))
        found += values
        if len(found) > MOST_VALUES:
            raise InputError(f"{flag} {_quoted(text)} makes more than {MOST_VALUES:,} values: take a larger step")
    return tuple(dict.fromkeys(found))


def _span(flag: str, first: float, last: float, step: float, *, quoted: str) -> list[float]:
    if step == 0 or last < first:
        raise InputError(f"{flag} takes first:last:step with a last of at least the first and a step, not {quoted}")
    count = (last - first) / step + 1e-9
    if count > MOST_VALUES:
        raise InputError(f"{flag} {quoted} makes more than {MOST_VALUES:,} values: take a larger step")
    return [round(first + place * step, 9) for place in range(int(count) + 1)]


def wholes(flag: str, text: str | None, *, minimum: int = 1, example: str = "1,8,32") -> list[int] | None:
    """Whole numbers: a list, or first:last:step."""
    found = numbers(flag, text, "digits", example=example, zero=minimum == 0)
    if found is None:
        return None
    for value in found:
        if value != int(value) or value < minimum:
            raise InputError(f"{flag} takes whole numbers, such as {example}, not {shortened(str(text), 40)!r}")
    return [int(value) for value in found]


_LARGE = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,15})?(?:[eE]\+?[0-9]{1,2})?", re.ASCII)


def large(flag: str, text: str | None, *, example: str = "15e12") -> float | None:
    """A number above zero that may be spelt with an exponent (``15e12``); None where the flag was not given.

    Raises
    ------
    InputError
        For anything else.
    """
    if text is None:
        return None
    if not _LARGE.fullmatch(text.strip()) or not float(text) > 0:
        raise InputError(f"{flag} takes a number above zero, such as {example}, not {_quoted(text)}")
    return float(text)


def word(_: str, text: str | None) -> str | None:
    """A word of our vocabulary as it is spelt there: lower case, with underscores."""
    return None if text is None else text.strip().lower().replace("-", "_")


def as_given(_: str, text: str | None) -> str | None:
    """`text` as it is: the library says whether it knows it."""
    return text


def words(flag: str, text: str | None) -> list[str] | None:
    """Words apart by commas, each once."""
    return None if text is None else [word.lower().replace("-", "_") for word in names(flag, [text])]


def one_of(flag: str, text: str | None, choices: Sequence[str]) -> str | None:
    """`text` in lower case, if it is among `choices`; None where the flag was not given."""
    if text is None:
        return None
    word = text.strip().lower().replace("-", "_")
    if word not in choices:
        raise InputError(f"{flag} takes one of {', '.join(choices)}, not {_quoted(text)}")
    return word


def pairs(flag: str, texts: Sequence[str] | None, *, example: str = "sm_count=160") -> dict[str, str]:
    """``key=value`` texts as a mapping.

    Raises
    ------
    InputError
        For a text without key or value, or a key given twice.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals and value):
            raise InputError(f"{flag} takes field=value, such as {flag} {example}, not {_quoted(text)}")
        if key in found:
            raise InputError(f"{flag} gives {shortened(key, 40)} twice")
        found[key] = value
    return found


def names(flag: str, texts: Sequence[str]) -> list[str]:
    """Names from texts that may each hold several, apart by commas; each once, in order."""
    found = [name.strip() for text in texts for name in text.split(",")]
    if not all(found):
        raise InputError(
            f"{flag} takes one name or several apart by commas, such as a100,h100, not {_quoted(','.join(texts))}"
        )
    return list(dict.fromkeys(found))


def changes(texts: Sequence[str] | None) -> dict[str, str | float]:
    """What ``--set`` asks to change of a GPU: numbers where they are finite numbers, else text."""
    found: dict[str, str | float] = {}
    for key, value in pairs("--set", texts).items():
        try:
            number = float(value) if value.isascii() and "_" not in value else math.nan
        except ValueError:
            number = math.nan
        found[key] = number if math.isfinite(number) and key != "compute_capability" else value
    return found


def dims(texts: Sequence[str] | None) -> dict[str, int]:
    """What ``--dim`` says: sizes by name of a dimension."""
    given = pairs("--dim", texts, example="batch=8")
    return {name: whole(f"--dim {shortened(name, 40)}", size, minimum=0) or 0 for name, size in given.items()}


def _quoted(text: str) -> str:
    return repr(shortened(text, 40))
