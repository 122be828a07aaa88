"""Flags that verbs share: groups of them are dataclasses, spread out where typer looks at a verb."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

#: Beside a group in the signature of a verb: each of its flags takes several values.
SEVERAL = "several"


@dataclass(frozen=True)
class Flag:
    """A flag that takes one value, or several where the verb says so.

    Attributes
    ----------
    name, metavar, help : str
        As help shows them.
    one : callable
        ``(name, text) -> value``; the text is None where the flag was not given.
    several : callable, optional
        The same of texts that may hold several values; None where no verb takes them.
    """

    name: str
    metavar: str
    help: str
    one: Callable[[str, str | None], Any]
    several: Callable[[str, str | None], Any] | None = None


def option(name: str, metavar: str, help: str) -> Any:
    """A flag that is left out where it is not given."""
    return typer.Option(name, metavar=metavar, help=help, show_default=False)


def spread(verb: Callable[..., None]) -> Callable[..., None]:
    """`verb` as typer should see it: with the flags of each group among its parameters in the group's place.

    A group is a frozen dataclass with a default for each field. A field is annotated with a `Flag` or with an option
    of typer's own.
    """
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {}
    flat: list[Parameter] = []
    for parameter in signature(verb).parameters.values():
        hint = hints[parameter.name]
        group, *marks = (hint.__origin__, *hint.__metadata__) if hasattr(hint, "__metadata__") else (hint,)
        if is_dataclass(group):
            groups[parameter.name] = group
            flat += _flags_of(group, several=SEVERAL in marks)
        else:
            flat.append(parameter.replace(annotation=hint, kind=Parameter.KEYWORD_ONLY))

    @wraps(verb)
    def spread_out(**given: Any) -> None:
        made = {
            name: group(**{one.name: given.pop(one.name) for one in fields(group)}) for name, group in groups.items()
        }
        verb(**made, **given)

    vars(spread_out)["__signature__"] = Signature(flat)
    spread_out.__annotations__ = {one.name: one.annotation for one in flat}
    return spread_out


def _flags_of(group: Any, *, several: bool) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    found = []
    for one in fields(group):
        hint = hints[one.name]
        flag = hint.__metadata__[0]
        if isinstance(flag, Flag):
            hint = Annotated[hint.__origin__, option(flag.name, flag.metavar + ",..." * several, flag.help)]
        assert one.default is not MISSING
        found.append(Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=hint))
    return found


def switch(name: str, help: str) -> Any:
    """A flag that is on where it is given."""
    return typer.Option(name, help=help)


def read(group: Any) -> dict[str, Any]:
    """The value of each flag of a group, by the name of its field; None where it was not given.

    Raises
    ------
    InputError
        For a text that is none of the flag's values.
    """
    return {name: flag.one(flag.name, text) if isinstance(flag, Flag) else text or None
            for name, flag, text in _texts(group)}  # fmt: skip


def read_several(group: Any) -> dict[str, Any]:
    """As `read`, several values each."""
    return {name: flag.several(flag.name, text) for name, flag, text in _texts(group)}


def _texts(group: Any) -> list[tuple[str, Any, Any]]:
    hints = get_type_hints(type(group), include_extras=True)
    return [(one.name, hints[one.name].__metadata__[0], getattr(group, one.name)) for one in fields(group)]


def fields_by_flag(*groups: Any) -> dict[str, str]:
    """Field of each `Flag` of the groups, by the flag's name with underscores: ``prompt`` is ``prompt_tokens``."""
    found = {}
    for group in groups:
        for field, hint in get_type_hints(group, include_extras=True).items():
            flag = hint.__metadata__[0]
            if isinstance(flag, Flag):
                found[flag.name.removeprefix("--").replace("-", "_")] = field
    return found
