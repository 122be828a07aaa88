"""Coefficients fitted on older GPUs alone: what could have been said of newer ones before they were measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from joulecast.coefficients import places
from joulecast.coefficients.roots import package_folder, rooted
from joulecast.errors import InputError, UnknownNameError

#: Architectures that each forecast may know measurements of.
FORECASTS: Mapping[str, tuple[str, ...]] = {"ampere": ("pascal", "volta", "turing", "ampere")}


def forecast_folder(name: str) -> Path:
    """Where the coefficients of a forecast lie.

    Raises
    ------
    UnknownNameError
        If there is no such forecast.
    InputError
        If its coefficients were never built.
    """
    known = checked_forecast(name)
    folder = package_folder() / "forecast" / known
    if not places.gpus_in(folder):
        raise InputError(f"coefficients to forecast from {known} are not installed")
    return folder


def checked_forecast(name: str) -> str:
    """`name` as forecasts are called.

    Raises
    ------
    UnknownNameError
        If there is no such forecast.
    """
    word = name.strip().lower() if isinstance(name, str) else name
    if word not in FORECASTS:
        raise UnknownNameError("forecast", name, FORECASTS)
    return word


@contextmanager
def forecasting(name: str | None) -> Iterator[None]:
    """Within the context only what was measured on older GPUs is known; everything is, where `name` is None."""
    if name is None:
        yield
        return
    with rooted(forecast_folder(name)):
        yield


def forecast_notes(name: str | None) -> tuple[str, ...]:
    """What a reader should know of a forecast."""
    if name is None:
        return ()
    return (f"forecast from {name}: nothing measured on GPUs of later architectures takes part",)
