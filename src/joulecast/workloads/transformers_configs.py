"""Entries of a config that a model of transformers reads where they are not, taken from where the config has them."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import Any

#: What Python says of an entry that is not there.
_ABSENT = re.compile(r"'(?P<owner>\w+)' object has no attribute '(?P<name>\w+)'")

#: Attribute under which a config keeps what was taken from elsewhere.
TAKEN = "_joulecast_taken"

#: Parts of a config whose entries stand for the whole, the first of them first.
_SPEAKING = ("text_config", "decoder_config", "decoder", "language_config", "llm_config")

#: Entries that another of the same part stands for where a type has no such distinction.
_SAME = {"num_key_value_heads": "num_attention_heads", "rope_theta": "rope_parameters"}


def parts(config: Any) -> list[Any]:
    """A config and all the configs in it: the outermost first, then those that speak for the whole."""
    out = [config]
    held = {name: value for name, value in vars(config).items() if hasattr(value, "model_type")}
    for name in sorted(held, key=lambda one: _SPEAKING.index(one) if one in _SPEAKING else len(_SPEAKING)):
        out += parts(held[name])
    return out


def completed(config: Any, error: BaseException) -> bool:
    """Give a part of `config` the entry for which a model asked in vain, where another part has it.

    Parameters
    ----------
    config : PretrainedConfig
        Changed in place; what was taken from where is kept in its attribute `TAKEN`.
    error : Exception
        What the model raised.

    Returns
    -------
    bool
        False where the error is another, or no part has such an entry.
    """
    found = _ABSENT.search(str(error))
    if not isinstance(error, AttributeError) or found is None:
        return False
    whole = parts(config)
    name = found["name"]
    lacking = [one for one in whole if type(one).__name__ == found["owner"] and not hasattr(one, name)]
    for one in lacking:
        for other in (one, *whole):
            value = getattr(other, name, None)
            if value is None and name in _SAME:
                value = getattr(other, _SAME[name], None)
                value = value.get(name) if isinstance(value, dict) else value
            if value is not None and not name.startswith("_"):
                setattr(one, name, value)
                word = f"{found['owner']} has no {name}: that of {type(other).__name__} is taken"
                setattr(config, TAKEN, [*getattr(config, TAKEN, []), word])
                break
        else:
            return False
    return bool(lacking)


def completed_result(error: BaseException, undo: ExitStack) -> bool:
    """Give results of a model an entry, empty, for which another model asks in vain when it hands them on.

    Parameters
    ----------
    error : Exception
        What the model raised.
    undo : ExitStack
        Takes the entry out again when it is closed.

    Returns
    -------
    bool
        False where the error is another.
    """
    from transformers import modeling_outputs

    found = _ABSENT.search(str(error))
    cls = getattr(modeling_outputs, found["owner"], None) if found and isinstance(error, AttributeError) else None
    if found is None or cls is None or found["name"].startswith("_"):
        return False
    setattr(cls, found["name"], None)
    undo.callback(delattr, cls, found["name"])
    return True
