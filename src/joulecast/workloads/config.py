"""`Config`: checked reading of a model's config, which anyone may have written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from joulecast.errors import InputError, shortened

#: Largest size that any config may name, and most layers.
LARGEST_SIZE = 2**31
MOST_LAYERS = 2**14


class MissingKeyError(InputError):
    """A config leaves out what its model's size follows from."""


class Config:
    """A config as a mapping whose values are checked as they are read.

    Parameters
    ----------
    values : mapping
        Keys and values as in a Hugging Face ``config.json``.
    name : str
        Whose config it is, for messages.
    defaults : mapping, optional
        Values of keys that are left out, as the model's class has them.
    """

    def __init__(self, values: Mapping[str, Any], name: str, defaults: Mapping[str, Any] | None = None) -> None:
        self.values = {**(defaults or {}), **{key: value for key, value in values.items() if value is not None}}
        self.name = name

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def error(self, text: str) -> InputError:
        """An error about this config."""
        return InputError(f"config of {shortened(self.name)}: {text}")

    def missing(self, key: str) -> MissingKeyError:
        """An error about a key that is not there."""
        return MissingKeyError(f"config of {shortened(self.name)}: {key} is missing")

    def size(self, *keys: str, default: int | None = None, minimum: int = 1, maximum: int = LARGEST_SIZE) -> int:
        """A whole number under the first of `keys` that is there.

        Raises
        ------
        InputError
            If none is there and there is no default, or the value is no whole number within the bounds.
        """
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            number = not isinstance(value, bool) and isinstance(value, int | float) and abs(value) < math.inf
            if not number or value != int(value) or not minimum <= value <= maximum:
                raise self.error(f"{key} must be a whole number between {minimum} and {maximum}, got {_quoted(value)}")
            return int(value)
        if default is None:
            raise self.missing(keys[0])
        return default

    def layers(self, *keys: str) -> int:
        """A number of layers."""
        return self.size(*keys, maximum=MOST_LAYERS)

    def real(self, key: str, default: float, minimum: float = 0.0, maximum: float = 1e9) -> float:
        """A number within bounds under `key`, or the default."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
            raise self.error(f"{key} must be a number between {minimum:g} and {maximum:g}, got {_quoted(value)}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false under `key`, or the default."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, got {_quoted(value)}")
        return value

    def word(self, key: str, default: str = "") -> str:
        """A word under `key`, or the default."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(f"{key} must be a word, got {_quoted(value)}")
        return value

    def sizes(
        self, key: str, default: Sequence[int] | None = None, *, minimum: int = 1, maximum: int = LARGEST_SIZE
    ) -> tuple[int, ...]:
        """A list of whole numbers under `key`, or the default."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise self.missing(key)
            return tuple(default)
        if not isinstance(value, list | tuple) or len(value) > MOST_LAYERS:
            raise self.error(f"{key} must be a list of whole numbers, got {_quoted(value)}")
        single = {key: None}
        return tuple(
            Config({**single, key: item}, self.name).size(key, minimum=minimum, maximum=maximum) for item in value
        )

    def words(self, key: str) -> tuple[str, ...]:
        """A list of words under `key`; empty if there is none."""
        value = self.values.get(key)
        if value is None:
            return ()
        listed = isinstance(value, list | tuple) and len(value) <= MOST_LAYERS
        if not listed or not all(isinstance(item, str) for item in value):
            raise self.error(f"{key} must be a list of words, got {_quoted(value)}")
        return tuple(value)

    def sub(self, key: str, defaults: Mapping[str, Any] | None = None) -> Config:
        """The config nested under `key`; an empty one if there is none."""
        value = self.values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.error(f"{key} must hold a config of its own, got {_quoted(value)}")
        return Config(value, self.name, defaults)


def _quoted(value: object) -> str:
    try:
        return repr(shortened(value, 40))
    except (ValueError, RecursionError):  # integers of thousands of digits have no decimal text
        return "a value without a text"
