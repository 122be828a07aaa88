"""The flags of a footprint: where the GPUs run, what a kWh costs there and what it emits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulecast.cli import options
from joulecast.cli.flags import option
from joulecast.errors import InputError

if TYPE_CHECKING:
    from joulecast.scenarios.footprint import Site


#: Money where no other is named.
DEFAULT_CURRENCY = "USD"

#: Unit of a ratio of energies.
_SHARE = "energy over energy"


@dataclass(frozen=True)
class FootprintFlags:
    """Where the GPUs run."""

    price: Annotated[str | None, option("--price", "MONEY", "Price of a kWh, or a CSV of it over hours.")] = None
    currency: Annotated[str, typer.Option("--currency", metavar="NAME", help="Of it.")] = DEFAULT_CURRENCY
    carbon: Annotated[str | None, option("--carbon", "G", "g CO2e a kWh, or a CSV of it over hours.")] = None
    region: Annotated[str | None, option("--region", "NAME", "Carbon of a region's yearly average, or world.")] = None
    pue: Annotated[str | None, option("--pue", "FACTOR", "Energy of the building over its machines' [1].")] = None
    host_w: Annotated[str | None, option("--host-w", "W", "What the host draws for each GPU [0].")] = None
    host_share: Annotated[str | None, option("--host-share", "SHARE", "The same over the GPU's energy [0].")] = None
    start: Annotated[str | None, option("--start", "TIME", "When it runs, for tables over hours.")] = None


def site(given: FootprintFlags, *, deadline: bool = False) -> Site | None:
    """The site that the flags describe; None where none was given.

    With a `deadline` the start has its use even where no table needs it.

    Raises
    ------
    InputError
        For values that can't be read or are out of bounds, tables that can't be used, and a currency of no price.
    """
    currency, start = given.currency, given.start
    if not (currency.isprintable() and 0 < len(currency.strip()) <= 8):
        raise InputError("--currency takes a short name, such as EUR")
    if given.price is None and currency != DEFAULT_CURRENCY:
        raise InputError("--currency names the money of --price: give that too")
    if deadline and not any(_is_table(one) for one in (given.price, given.carbon)):
        start = None
    if replace(given, start=start, currency=DEFAULT_CURRENCY) == FootprintFlags():
        return None
    from joulecast.scenarios.footprint import site_of

    return site_of(
        price=_number_or_file("--price", given.price, "money a kWh", "0.20"),
        currency=currency.strip(),
        carbon=_number_or_file("--carbon", given.carbon, "g CO2e a kWh", "380"),
        region=given.region,
        pue=options.real("--pue", given.pue, _SHARE, example="1.2") or 1.0,
        host_w=options.real("--host-w", given.host_w, "W", zero=True, example="100") or 0.0,
        host_share=options.real("--host-share", given.host_share, _SHARE, zero=True, example="0.3") or 0.0,
        start=start,
    )


def _number_or_file(flag: str, text: str | None, unit: str, example: str) -> float | Path | None:
    if text is not None and _is_table(text):
        return Path(text)
    return options.real(flag, text, f"{unit} or a .csv file", zero=True, example=example)


def _is_table(text: str | None) -> bool:
    return text is not None and Path(text).suffix.lower() in (".csv", ".tsv", ".txt")
