"""A recording from beginning to end: modules called, layers like earlier ones not run again, steps told apart."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.cuda.amp import common
from torch.utils import _foreach_utils as foreach
from torch.utils._pytree import tree_flatten, tree_unflatten

from joulecast.workloads.events import Event
from joulecast.workloads.pytorch_caches import Written, held_in, is_cache, layer_index, watched
from joulecast.workloads.pytorch_flex import flex_recorded
from joulecast.workloads.pytorch_macros import Macros
from joulecast.workloads.pytorch_modules import module_rows
from joulecast.workloads.pytorch_recorder import Recorder
from joulecast.workloads.pytorch_shapes import tensors_in
from joulecast.workloads.pytorch_values import Constants, Values, has_no_data

#: How often a repeated layer is run before the next ones like it are taken from the last: the second shows how one
#: follows another.
_RUNS = 2

#: Attributes that number a layer and change nothing of what it runs.
_NUMBERS = frozenset({"layer_idx", "layer_id", "layer_index", "layer_number", "idx", "block_idx", "layer_num"})

_LOCK = threading.Lock()


@dataclass
class _Kept:
    """A layer that was run: which events it made, and how its results hang together with what it was given."""

    start: int
    end: int
    runs: int
    spec: Any
    leaves: list[Any]
    same: bool
    calls: int
    written: Written | None = None


class Session:
    """Records everything that PyTorch runs between `__enter__` and `__exit__`.

    Parameters
    ----------
    autocast : torch.dtype, optional
        Format that matrix multiplies and convolutions of fp32 tensors are cast to.
    repeat : bool
        Whether layers like earlier ones are counted and not run, where nothing but shapes flows through them.
    values : Values, optional
        What is known of tensors without data that were made before.
    """

    def __init__(
        self, autocast: torch.dtype | None = None, *, repeat: bool = True, values: Values | None = None
    ) -> None:
        self.recorder = Recorder()
        if values is not None:
            self.recorder.values.take(values)
        self.repeat = repeat
        self.roots: list[Any] = []
        self._names: dict[int, str] = {}
        self._signatures: dict[int, Any] = {}
        self._kept: dict[Any, _Kept] = {}
        self.calls = self.outer_calls = 0
        self._macros = Macros(self.recorder, autocast)
        self._stack = ExitStack()

    def __enter__(self) -> Session:
        if not _LOCK.acquire(blocking=False):
            from joulecast.errors import InputError

            raise InputError("a recording is under way already: leave it before another begins")
        self._stack.callback(_LOCK.release)
        try:
            self._begin_recording()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _begin_recording(self) -> None:
        original = torch.nn.Module.__call__
        session = self

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            return session.call(original, module, args, kwargs)

        torch.nn.Module.__call__ = call
        self._stack.callback(setattr, torch.nn.Module, "__call__", original)
        self._stack.callback(setattr, torch.amp.autocast, "__init__", torch.amp.autocast.__init__)
        torch.amp.autocast.__init__ = _as_on_a_gpu(torch.amp.autocast.__init__)
        # on a GPU optimizers update many tensors in one kernel
        name = "_get_foreach_kernels_supported_devices"
        supported = getattr(foreach, name)
        for holder in (foreach, importlib.import_module("torch.optim.optimizer")):
            self._stack.callback(setattr, holder, name, getattr(holder, name))
            setattr(holder, name, lambda: [*supported(), "meta", "cpu"])
        self._stack.enter_context(self.recorder)
        self._stack.enter_context(self._macros)
        self._stack.enter_context(Constants(self.recorder.values))
        self._stack.enter_context(flex_recorded(self._macros))

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    # ---------------------------------------------------------------- modules

    def call(self, original: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
        """Call a module, its path on the stack; or count it where it is like one that ran."""
        recorder = self.recorder
        if recorder.suspended:
            return original(module, *args, **kwargs)
        outermost = not recorder.stack
        path = self._path(module, outermost)
        if outermost:
            self.outer_calls += 1
            self._begin(args, kwargs)
        if not _multiplies(module):
            self.calls += 1
        recorder.stack.append(path)
        try:
            rows = module_rows(module, args, kwargs)
            if rows is not None:
                return rows.record(recorder, original, module, args, kwargs)
            if self.repeat and path.rpartition(".")[2].isdigit():
                return self._repeated(original, module, path, args, kwargs)
            return original(module, *args, **kwargs)
        finally:
            recorder.stack.pop()

    def _path(self, module: Any, outermost: bool) -> str:
        name = self._names.get(id(module))
        if name is None and outermost:
            self.roots.append(module)
            for path, one in module.named_modules(remove_duplicate=False):
                self._names.setdefault(id(one), path)
            self.recorder.stars.update(_stars(module))
            self._count_weights(module)
            name = ""
        if name is None:  # made on the way, or kept outside of its parent
            name = f"{self.recorder.path}.{type(module).__name__}".lstrip(".")
        return name

    def _count_weights(self, module: Any) -> None:
        for one in (*module.parameters(), *module.buffers()):
            key = one.untyped_storage()._cdata
            self.recorder.weights[key] = max(self.recorder.weights.get(key, 0.0), float(one.untyped_storage().nbytes()))
        for one in module.parameters():
            self.recorder.parameters[one.untyped_storage()._cdata] = one.numel()

    def _begin(self, args: Any, kwargs: Mapping[str, Any]) -> None:
        """A call from outside: a prefill where it fills a cache, a decoding step where there is something in it."""
        recorder = self.recorder
        recorder._after_backward = False
        cache = kwargs.get("past_key_values", kwargs.get("cache"))
        phase = "forward"
        if kwargs.get("use_cache") and cache is not None:
            filled = getattr(cache, "get_seq_length", lambda: 0)()
            filled = int(filled) if not isinstance(filled, torch.Tensor) else 0
            phase = "decode" if filled else "prefill"
        recorder.phase_of_call = phase
        recorder.tokens[phase] = recorder.tokens.get(phase, 0.0) + _tokens(args, kwargs)

    # ---------------------------------------------------------------- layers like earlier ones

    def _repeated(self, original: Any, module: Any, path: str, args: Any, kwargs: Any) -> Any:
        recorder = self.recorder
        given, spec = tree_flatten((args, dict(kwargs)))
        caches = [one for one in given if is_cache(one)]
        index = layer_index(module) if caches else None
        key = self._key(module, recorder.starred(path), given, spec, index)
        if key is None:
            return original(module, *args, **kwargs)
        kept = self._kept.get(key)
        if kept is not None and kept.runs >= _RUNS and kept.same:
            if kept.written is not None and index is not None:
                with recorder.pause():
                    kept.written.again(caches[0], index)
            return _hooked(module, args, kwargs, self._again(kept, given))
        start, calls = len(recorder.events), self.calls
        with watched(caches[0], index) if caches and index is not None else nullcontext() as written:
            out = original(module, *args, **kwargs)
        leaves, out_spec = tree_flatten(out)
        if all(isinstance(one, torch.Tensor | int | float | str | bool | None) for one in leaves):
            same = kept is None or _alike(recorder.events, (kept.start, kept.end), (start, len(recorder.events)))
            runs = 1 if kept is None else kept.runs + 1
            self._kept[key] = _Kept(
                start,
                len(recorder.events),
                runs,
                out_spec,
                [self._link(one, given) for one in leaves],
                same,
                self.calls - calls,
                written,
            )
        return out

    def _key(self, module: Any, path: str, given: list[Any], spec: Any, index: int | None) -> Any:
        """What must be alike for two layers to run alike; None where more than shapes flows."""
        facts: list[Any] = []
        for one in given:
            if isinstance(one, torch.Tensor):
                if not has_no_data(one) or (torch.is_grad_enabled() and one.requires_grad):
                    return None
                storage = self.recorder.values._storages.get(one.untyped_storage()._cdata)
                facts.append((tuple(one.shape), one.stride(), one.dtype, id(storage) if storage is not None else 0))
            elif isinstance(one, int | float | str | bool | None):
                facts.append(one)
            elif is_cache(one) and index is not None and (held := held_in(one, index)) is not None:
                facts.append((id(one), held))
            else:
                return None
        if torch.is_grad_enabled() and any(one.requires_grad for one in module.parameters()):
            return None
        signature = self._signatures.get(id(module))
        if signature is None:
            signature = self._signatures[id(module)] = _signature(module)
        phase = self.recorder.place()[1]
        return (path, phase, signature, tuple(facts), str(spec))

    def _link(self, leaf: Any, given: list[Any]) -> Any:
        """How to make a result again: the argument it is, or its layout."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        for place, one in enumerate(given):
            if one is leaf:
                return _Argument(place)
        return leaf

    def _again(self, kept: _Kept, given: list[Any]) -> Any:
        recorder = self.recorder
        self.calls += kept.calls
        made = []
        with recorder.pause():
            for leaf in kept.leaves:
                if isinstance(leaf, _Argument):
                    made.append(given[leaf.place])
                elif isinstance(leaf, torch.Tensor):
                    made.append(torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device=leaf.device))
                else:
                    made.append(leaf)
        event = recorder.write_down("repeat", [], [one for one in given if isinstance(one, torch.Tensor)], made)
        event.repeat = (kept.start, kept.end)
        return tree_unflatten(made, kept.spec)


def _as_on_a_gpu(original: Callable[..., None]) -> Callable[..., None]:
    """`torch.autocast` that takes ``cuda`` at its word where there is none."""

    @functools.wraps(original)
    def begin(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        kept = (common.amp_definitely_not_available, torch.cuda.is_bf16_supported)
        common.amp_definitely_not_available, torch.cuda.is_bf16_supported = (lambda: False), (lambda *_: True)
        try:
            original(self, device_type, *args, **kwargs)
        finally:
            common.amp_definitely_not_available, torch.cuda.is_bf16_supported = kept

    return begin


def _multiplies(module: Any) -> bool:
    """Whether a module multiplies by weights of its own: its call is counted with that multiply, not by itself."""
    return not isinstance(module, torch.nn.Embedding) and any(
        value is not None and value.dim() > 1 and ("weight" in name or "proj" in name)
        for name, value in module._parameters.items()
    )


@dataclass(frozen=True)
class _Argument:
    place: int


def _hooked(module: Any, args: Any, kwargs: Any, out: Any) -> Any:
    """What a module's own forward hooks make of a result: they gather hidden states, which a skipped call has too."""
    for key, hook in tuple(module._forward_hooks.items()):
        takes_names = key in module._forward_hooks_with_kwargs
        changed = hook(module, args, kwargs, out) if takes_names else hook(module, args, out)
        out = out if changed is None else changed
    return out


def _alike(events: list[Event], first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Whether two stretches of events are the same operations."""
    if first[1] - first[0] != second[1] - second[0]:
        return False
    pairs = zip(events[slice(*first)], events[slice(*second)], strict=True)
    return all(a.op == b.op and a.rows == b.rows and a.repeat is None and b.repeat is None for a, b in pairs)


def _signature(module: Any) -> Any:
    """What a module is made of: classes, shapes of weights, and plain attributes but for numbers of layers."""
    out: list[Any] = []
    for name, one in module.named_modules():
        tensors = tuple(
            (key, tuple(value.shape), value.stride(), value.dtype)
            for group in (one._parameters, one._buffers)
            for key, value in group.items()
            if value is not None
        )
        plain = tuple(
            (key, bool(value) if isinstance(value, float) else value)
            for key, value in sorted(vars(one).items())
            if isinstance(value, int | float | str | bool | None) and key not in _NUMBERS
        ) + _tuples(one)
        others = tuple(
            (key, id(value)) for key, value in vars(one).items() if key in ("forward", "config", "activation_fn")
        )
        out.append((name, type(one), tensors, plain, others))
    return hash(tuple(out))


def _tuples(module: Any) -> tuple[Any, ...]:
    """Attributes of several numbers or words: strides, paddings and dilations tell convolutions of one shape apart."""
    return tuple(
        (key, tuple(value))
        for key, value in sorted(vars(module).items())
        if isinstance(value, tuple | list) and value and all(isinstance(part, int | str) for part in value)
    )


def _stars(root: Any) -> dict[str, str]:
    """Paths of all modules with stars for the numbers of layers; steps of a sequence keep theirs."""
    stars = {"": ""}
    for path, one in root.named_modules(remove_duplicate=False):
        for name, child in one.named_children():
            step = isinstance(one, torch.nn.Sequential) and next(child.children(), None) is None
            word = "*" if name.isdigit() and not step else name
            stars[f"{path}.{name}".lstrip(".")] = f"{stars[path]}.{word}".lstrip(".")
    return stars


def _tokens(args: Any, kwargs: Mapping[str, Any]) -> float:
    """Tokens of the first argument of indices, else the size of the first dimension of the first tensor."""
    given = [one for one in tensors_in([args, dict(kwargs)]) if one.dim()]
    for one in given:
        if one.dtype in (torch.int64, torch.int32) and one.dim() <= 2:
            return float(one.numel())
    return float(given[0].shape[0]) if given else 0.0
