"""The configurations that a kernel can be built in: named tunables, constraints, neighbours, mutation, crossover."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from joulecast.errors import InputError, shortened
from joulecast.tuning.expressions import compiled

Value = int | float | str | bool
Config = Mapping[str, Value]
Code = tuple[int, ...]
Floats = npt.NDArray[np.float64]

#: Spaces with at most so many combinations are enumerated; of larger ones a sample is drawn.
ENUMERATED = 1_000_000


@dataclass(frozen=True)
class Tunable:
    """A named choice.

    Attributes
    ----------
    name : str
    values : tuple
        In their natural order where they have one: neighbours are the values beside.
    """

    name: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise InputError(f"a tunable needs a name such as BLOCK_M, not {shortened(self.name)!r}")
        if not self.values or len(set(self.values)) != len(self.values):
            raise InputError(f"tunable {self.name} needs values that differ: got {shortened(self.values)}")

    @property
    def ordered(self) -> bool:
        """Whether the values are numbers."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


@dataclass(frozen=True)
class Constraint:
    """What a configuration must fulfil.

    Attributes
    ----------
    text : str
        For people, and for the space's fingerprint.
    test : callable
        Takes a `Config`.
    """

    text: str
    test: Callable[[Config], bool] = field(compare=False)


@dataclass(frozen=True)
class Space:
    """All configurations that fulfil the constraints.

    Attributes
    ----------
    tunables : tuple of Tunable
    constraints : tuple of Constraint
    listed : frozenset of tuple of int, or None
        Where not None, the codes that there are and no others: a recorded space, or an explicit list.

    Notes
    -----
    A configuration is a mapping from name to value; its *code* is the tuple of the values' places in their tunables.
    """

    tunables: tuple[Tunable, ...]
    constraints: tuple[Constraint, ...] = ()
    listed: frozenset[Code] | None = None

    @classmethod
    def of(
        cls,
        tunables: Mapping[str, Sequence[Value]],
        constraints: Sequence[str | Constraint | Callable[[Config], bool]] = (),
    ) -> Space:
        """A space from plain values.

        Parameters
        ----------
        tunables : mapping
            Such as ``{"BLOCK_M": [64, 128], "num_warps": [4, 8]}``.
        constraints : sequence of str, Constraint or callable
            Text such as ``"BLOCK_M * BLOCK_N <= 16384"`` (parsed, never executed), or a function of a mapping.

        Raises
        ------
        InputError
            For names, values or text that can't be used.
        """
        if not tunables:
            raise InputError("a space needs at least one tunable, such as num_warps: [4, 8]")
        made = tuple(Tunable(str(name), tuple(values)) for name, values in tunables.items())
        names = frozenset(tunable.name for tunable in made)
        rules: list[Constraint] = []
        for rule in constraints:
            if isinstance(rule, Constraint):
                rules.append(rule)
            elif isinstance(rule, str):
                rules.append(Constraint(rule.strip(), compiled(rule, names)))
            else:
                rules.append(Constraint(getattr(rule, "__name__", "a function"), rule))
        return cls(made, tuple(rules))

    @classmethod
    def of_list(cls, configs: Sequence[Config]) -> Space:
        """The space that holds exactly `configs`, which name the same tunables."""
        if not configs:
            raise InputError("a space needs at least one configuration")
        names = tuple(configs[0])
        if any(tuple(config) != names and set(config) != set(names) for config in configs):
            raise InputError("the configurations of a list must name the same tunables")
        made = []
        for name in names:
            values = list(dict.fromkeys(config[name] for config in configs))
            if all(isinstance(value, int | float) for value in values):
                values.sort()
            made.append(Tunable(name, tuple(values)))
        places = [{value: place for place, value in enumerate(tunable.values)} for tunable in made]
        codes = frozenset(
            tuple(where[config[name]] for name, where in zip(names, places, strict=True)) for config in configs
        )
        return cls(tuple(made), (), codes)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tunables."""
        return tuple(tunable.name for tunable in self.tunables)

    @property
    def combinations(self) -> int:
        """How many there are before constraints."""
        return math.prod(len(tunable.values) for tunable in self.tunables)

    @property
    def fingerprint(self) -> str:
        """The same for the same tunables, values and texts of constraints."""
        listed = None if self.listed is None else sorted(self.listed)
        rows = [[t.name, [repr(v) for v in t.values]] for t in self.tunables]
        text = json.dumps([rows, [rule.text for rule in self.constraints], listed])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def config(self, code: Code) -> dict[str, Value]:
        """The configuration of a code."""
        return {tunable.name: tunable.values[place] for tunable, place in zip(self.tunables, code, strict=True)}

    def code(self, config: Config) -> Code:
        """The code of a configuration.

        Raises
        ------
        InputError
            If a tunable is missing or has a value that the space does not hold.
        """
        places = []
        strange = [name for name in config if name not in self.names]
        if strange:
            raise InputError(f"{shortened(strange[0])} is no tunable of the space: {', '.join(self.names)}")
        missing = [name for name in self.names if name not in config]
        if missing:
            raise InputError(f"a configuration names each tunable of the space, this one lacks {', '.join(missing)}")
        for tunable in self.tunables:
            if config[tunable.name] not in tunable.values:
                raise InputError(
                    f"{tunable.name} = {shortened(config[tunable.name])} is not in the space: "
                    f"{', '.join(map(str, tunable.values))}"
                )
            places.append(tunable.values.index(config[tunable.name]))
        return tuple(places)

    def holds(self, code: Code) -> bool:
        """Whether the configuration of `code` is in the space."""
        if self.listed is not None:
            return code in self.listed
        config = self.config(code)
        return all(rule.test(config) for rule in self.constraints)

    def enumerated(self) -> Iterator[Code]:
        """Every code, in order."""
        if self.listed is not None:
            yield from sorted(self.listed)
            return
        for code in itertools.product(*(range(len(tunable.values)) for tunable in self.tunables)):
            if self.holds(code):
                yield code

    def pool(self, rng: np.random.Generator, limit: int = 20_000) -> list[Code]:
        """The codes that a search works on: all where they can be enumerated, else a sample without repeats.

        Parameters
        ----------
        rng : numpy.random.Generator
        limit : int
            Size of the sample.

        Returns
        -------
        list of tuple of int

        Raises
        ------
        InputError
            If no configuration fulfils the constraints (of a large space: none in 100 draws for each wanted).
        """
        if self.listed is not None or self.combinations <= ENUMERATED:
            found = list(self.enumerated())
        else:
            sizes = np.array([len(tunable.values) for tunable in self.tunables])
            seen: dict[Code, None] = {}
            for _ in range(100):
                for row in rng.integers(0, sizes, size=(limit, len(sizes))).tolist():
                    code = tuple(row)
                    if code not in seen and self.holds(code):
                        seen[code] = None
                if len(seen) >= limit:
                    break
            found = list(seen)[:limit]
        if not found:
            raise InputError("no configuration fulfils the constraints: loosen one of them")
        return found

    def neighbours(self, code: Code, *, adjacent: bool = False) -> list[Code]:
        """Codes that differ in one tunable.

        Parameters
        ----------
        code : tuple of int
        adjacent : bool
            Only by a step in the order of the values (words have none: each is a step from each).
        """
        found = []
        for place, tunable in enumerate(self.tunables):
            for other in range(len(tunable.values)):
                if other == code[place] or (adjacent and tunable.ordered and abs(other - code[place]) > 1):
                    continue
                beside = (*code[:place], other, *code[place + 1 :])
                if self.holds(beside):
                    found.append(beside)
        return found

    def mutated(self, code: Code, rng: np.random.Generator, probability: float | None = None) -> Code:
        """`code` with each tunable redrawn with `probability` (default: one on average), within the constraints.

        Returns `code` itself where 50 tries find no other.
        """
        share = 1.0 / len(self.tunables) if probability is None else probability
        for _ in range(50):
            places = [
                int(rng.integers(len(tunable.values))) if rng.random() < share else place
                for tunable, place in zip(self.tunables, code, strict=True)
            ]
            made = tuple(places)
            if made != code and self.holds(made):
                return made
        return code

    def crossed(self, one: Code, other: Code, rng: np.random.Generator) -> Code:
        """A child that takes each tunable from one of two parents, within the constraints; `one` after 50 tries."""
        for _ in range(50):
            made = tuple(a if rng.random() < 0.5 else b for a, b in zip(one, other, strict=True))
            if self.holds(made):
                return made
        return one

    def numbers(self, codes: Sequence[Code]) -> Floats:
        """Parameters as numbers for a model, shape (n, p): logarithms of positive numbers, places of words."""
        columns = []
        array = np.asarray(codes, dtype=np.intp).reshape(len(codes), len(self.tunables))
        for place, tunable in enumerate(self.tunables):
            if tunable.ordered:
                values = np.array(tunable.values, dtype=np.float64)
                if values.min() > 0:
                    values = np.log2(values)
            else:
                values = np.arange(len(tunable.values), dtype=np.float64)
            columns.append(values[array[:, place]])
        return np.stack(columns, axis=1)
