"""Records what a PyTorch program runs: every operator below autograd, with the module and the phase it belongs to."""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

from joulecast.workloads.events import Event, Row
from joulecast.workloads.pytorch_convolutions import in_layout_of_input
from joulecast.workloads.pytorch_costs import registered_cost, rows_of
from joulecast.workloads.pytorch_masks import is_mask
from joulecast.workloads.pytorch_ops import FREE, HANDLERS, bytes_moved, is_view, rows_for
from joulecast.workloads.pytorch_rules import Call
from joulecast.workloads.pytorch_shapes import stored_elements, tensors_in
from joulecast.workloads.pytorch_values import (
    LARGEST_VALUE,
    SIZED_BY_VALUES,
    Places,
    Values,
    empty_like_layout,
    has_no_data,
)

#: Operators whose second argument is a list of indices, or masks.
_BY_INDEX = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"})

#: A number between dots: the place of a layer among its like.
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """A dispatch mode that writes down each operator; see `Event`.

    Attributes
    ----------
    events : list of Event
    values : Values
        What is known of tensors without data.
    tokens : dict of str to float
        Tokens (or images) taken in by the outermost modules, by phase.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.values = Values()
        self.tokens: dict[str, float] = {}
        self.stack: list[str] = []
        self.weights: dict[int, float] = {}
        self.parameters: dict[int, int] = {}
        self.stars: dict[str, str] = {}
        self.suspended = 0
        self.in_optimizer = False
        self.phase_of_call = "forward"
        self._after_backward = False
        self._noted: list[tuple[int, str]] = []
        self._numbers: dict[int, int] = {}
        self._places = Places()
        self._next = itertools.count(1)
        self._hooks: list[Any] = []

    # ---------------------------------------------------------------- where an operator belongs

    @property
    def path(self) -> str:
        """Path of the innermost module that is being called."""
        return self.stack[-1] if self.stack else ""

    def starred(self, path: str) -> str:
        """`path` with the numbers of layers as stars."""
        found = self.stars.get(path)
        if found is None:
            found = self.stars[path] = _NUMBER.sub("*", path)
        return found

    def place(self) -> tuple[str, str]:
        """Path and phase of what runs now; in the backward pass those of the forward operator it belongs to."""
        node = torch._C._current_autograd_node()
        if node is not None:
            self._after_backward = True
            path = self.path or self._path_of(node._sequence_nr())
            return path, "backward"
        if self.in_optimizer:
            return self.path or "optimizer", "optimizer"
        if self.stack:
            self._note_path()
            return self.path, self.phase_of_call
        return "", "optimizer" if self._after_backward else self.phase_of_call

    def _note_path(self) -> None:
        """Remember where the autograd node that was made last belongs: the first operator after it is its own."""
        number = torch._C._autograd._get_sequence_nr()
        if not self._noted or self._noted[-1][0] != number:
            self._noted.append((number, self.path))

    def _path_of(self, sequence: int) -> str:
        """Path of the forward operator whose node has the number `sequence`, or of the one before it."""
        place = bisect.bisect_right(self._noted, (sequence + 1, "\uffff")) - 1
        return self._noted[max(place, 0)][1] if self._noted else ""

    # ---------------------------------------------------------------- values by number

    def number(self, tensor: Tensor) -> int:
        """Number of the value that the memory of `tensor` holds."""
        key = self._places.of(tensor)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = next(self._next)
        return found

    def renumber(self, tensor: Tensor) -> int:
        """A new number for the memory of `tensor`, which was written."""
        found = self._numbers[self._places.of(tensor)] = next(self._next)
        return found

    def _facts(self, tensors: list[Tensor], numbers: Callable[[Tensor], int]) -> tuple[tuple[int, int, int], ...]:
        return tuple((numbers(one), one.numel(), stored_elements(one) * one.element_size()) for one in tensors)

    # ---------------------------------------------------------------- recording

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Operators within are run and not written down."""
        self.suspended += 1
        try:
            yield
        finally:
            self.suspended -= 1

    def write_down(self, op: str, rows: list[Row], reads: Any, writes: Any, *, unpriced: float = 0.0) -> Event:
        """Add an event made elsewhere (a fused function, a module that is priced as a whole)."""
        path, phase = self.place()
        event = Event(op, rows, self.starred(path), phase)
        event.reads = self._facts(tensors_in(reads), self.number)
        made = tensors_in(writes)
        event.shape = tuple(made[0].shape) if made else ()
        event.writes = self._facts(made, self.renumber)
        event.unpriced_bytes = unpriced
        self.events.append(event)
        return event

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return self._higher(func, *args)
        name = func._schema.name
        short = name.split("::")[-1]
        if short not in HANDLERS and _is_made_of_others(func):  # as they come in inference mode
            with self:
                return func.decompose(*args, **kwargs)
        given = tensors_in(args) + tensors_in(kwargs)
        bare = next((one for one in given if has_no_data(one)), None)
        if bare is not None and any(not has_no_data(one) for one in given):
            args, kwargs = tree_map(
                lambda one: (
                    self.values.without_data(one, bare)
                    if isinstance(one, torch.Tensor) and not has_no_data(one)
                    else one
                ),
                (args, kwargs),
            )
            given = tensors_in(args) + tensors_in(kwargs)
        if bare is not None:
            self._make_up(given)
        if bare is not None and short in _BY_INDEX:
            args = self._places_of_masks(args)
            given = tensors_in(args) + tensors_in(kwargs)
        view = is_view(func)
        known = None
        if not view and (bare is not None or _makes_meta(kwargs)):
            known = self._with_values(func, args, kwargs, given)
        reads = () if view or self.suspended else self._facts(given, self.number)
        out = in_layout_of_input(short, args, self._run(func, short, args, kwargs, given, known))
        if view or short in FREE:
            self._name_again(short, out, given)
            return out
        self._remember_values(func, short, out, args, given, known)
        if self.suspended:
            for one in tensors_in(out):
                self.renumber(one)
            return out
        self._record(func, name, short, args, kwargs, given, out, reads)
        return out

    def _higher(self, func: Any, *args: Any) -> Any:
        """A branch of the program's own, run as the value that it hangs on says, or else as if that held."""
        if func.name() != "cond":
            raise NotImplementedError(f"{func.name()} is not run without its data")
        condition, holds, fails, operands = args
        value = self.values.of(condition) if isinstance(condition, torch.Tensor) else condition
        if value is None:
            self.values.assumed.add("branches on values that depend on weights take their usual way")
        with self:
            return (holds if value is None or bool(value) else fails)(*operands)

    def _name_again(self, short: str, out: Any, given: list[Tensor]) -> None:
        """Memory not yet written is new; other results of what moves nothing are the memory of the first argument."""
        for one in tensors_in(out):
            if short.startswith(("empty", "new_empty")):
                self.renumber(one)
                self.values.begin(one)
            elif given and one.untyped_storage()._cdata != given[0].untyped_storage()._cdata:
                self._numbers[self._places.of(one)] = self.number(given[0])
                if has_no_data(one):
                    self.values.share(one, given[0])

    def _record(
        self, func: Any, name: str, short: str, args: Any, kwargs: Any, given: list[Tensor], out: Any, reads: Any
    ) -> None:
        call = Call(short, args, kwargs, out)
        users = registered_cost(name)
        rows = rows_of(name, users, args, kwargs, out) if users is not None else rows_for(func, call)
        path, phase = self.place()
        own = rows is None and not name.startswith("aten::")  # by the name under which its cost can be given
        event = Event(name if own else short, rows or [], self.starred(path), phase)
        event.unpriced_bytes = bytes_moved(call) if rows is None else 0.0
        event.reads = reads
        made = tensors_in(out) or [one for one in given if func._schema.is_mutable][:1]
        event.shape = tuple(made[0].shape) if made else ()
        event.writes = self._facts(made, self.renumber)
        if short in ("add", "where", "masked_fill", "masked_fill_", "add_", "mul"):
            event.mask = self._mask(short, given)
        self.events.append(event)

    def _mask(self, short: str, given: list[Tensor]) -> Tensor | None:
        """What a mask among the arguments lets through, where it is known: True or 0 where a score is kept."""
        known = [self.values.of(one) for one in given if one.dim() >= 2 and one.shape[-1] > 1]
        masks = [one for one in known if one is not None and is_mask(one)]
        if not masks:
            return None
        value = min(masks, key=lambda one: (one.dtype is not torch.bool, one.numel()))
        hides = short.startswith("masked_fill") or (short == "where" and given[1].numel() <= 1)
        return ~value if hides and value.dtype is torch.bool else value

    # ---------------------------------------------------------------- running without data

    def _with_values(self, func: Any, args: Any, kwargs: Any, given: list[Tensor]) -> Any:
        """What an operator that writes nothing in place gives on the known values of its arguments."""
        if func._schema.is_mutable and given:
            return None
        self.suspended += 1
        try:
            return self.values.computed(func, args, dict(kwargs), given)
        finally:
            self.suspended -= 1

    def _run(self, func: Any, short: str, args: Any, kwargs: Any, given: list[Tensor], known: Any) -> Any:
        if known is not None:
            if not isinstance(known, torch.Tensor | list | tuple):
                return known  # .item()
            like = given[0] if given else None
            return tree_map(lambda one: empty_like_layout(one, like) if isinstance(one, torch.Tensor) else one, known)
        if given and has_no_data(given[0]):
            if short == "_to_copy" and torch.device(kwargs.get("device") or "meta").type == "cpu":
                kwargs = {**kwargs, "device": given[0].device}  # stays where it is: there is nothing to copy
            if short == "_local_scalar_dense":
                return self._guess(given[0])
            if short in SIZED_BY_VALUES:
                return self._largest(short, given)
            if short == "equal":
                self.values.assumed.add("comparisons of values that depend on weights are taken as equal")
                return True
        if func._schema.is_mutable and any(self.values.knows(one) for one in given if has_no_data(one)):
            self._write_values(func, args, kwargs, given)
        return func(*args, **kwargs)

    def _guess(self, tensor: Tensor) -> Any:
        """What code that looks at a value it can't know is told: no NaN, all of a mask, one of a count."""
        self.values.assumed.add("branches on values that depend on weights take their usual way")
        if tensor.dtype is torch.bool:
            number = self._numbers.get(tensor.untyped_storage()._cdata)
            maker = next((one.op for one in reversed(self.events) if any(w[0] == number for w in one.writes)), "")
            return maker in ("all", "_is_all_true", "eq", "ge", "le", "isfinite")
        return 1.0 if tensor.dtype.is_floating_point else 1

    def _largest(self, short: str, given: list[Tensor]) -> Any:
        """A result whose size depends on unknown values, at its largest."""
        self.values.assumed.add("sizes that depend on values are taken at their largest")
        x = given[0]
        if short == "nonzero":
            return x.new_empty((x.numel(), x.dim()), dtype=torch.int64)
        if short == "masked_select":
            return x.new_empty((x.numel(),))
        if short == "bincount":
            return x.new_empty((max(x.numel(), 1),), dtype=torch.int64)
        if short == "repeat_interleave":
            return x.new_empty((x.numel(),), dtype=torch.int64)
        index = x.new_empty((x.numel(),), dtype=torch.int64)
        return x.new_empty((x.numel(),)), index, index.new_empty((x.numel(),))

    def _make_up(self, given: list[Tensor]) -> None:
        """Indices and masks from outside that have no data: ones, so that what acts on them can go on."""
        for one in given:
            if one.dtype.is_floating_point or one.dtype.is_complex or one.untyped_storage()._cdata in self._numbers:
                continue
            if has_no_data(one) and not self.values.knows(one) and one.numel() <= LARGEST_VALUE:
                self.values.make_up(one)

    def _places_of_masks(self, args: Any) -> Any:
        """Arguments of an indexing with masks made places, all of them where a mask is not known."""
        places: list[Any] = []
        for one in args[1]:
            if not isinstance(one, torch.Tensor) or one.dtype not in (torch.bool, torch.uint8):
                places.append(one)
                continue
            value = self.values.of(one)
            if value is None:
                self.values.assumed.add("sizes that depend on values are taken at their largest")
                with _disable_current_modes():
                    value = torch.ones(one.shape, dtype=torch.bool)
            with _disable_current_modes():
                found = value.nonzero(as_tuple=True)
            places += [self.values.without_data(each, one) for each in found]
        return (args[0], places, *args[2:])

    def _write_values(self, func: Any, args: Any, kwargs: Any, given: list[Tensor]) -> None:
        """Carry an operator in place out on the known values too, or forget them."""
        if all(self.values.knows(one) for one in given):
            self.suspended += 1
            try:
                plain = tree_map(
                    lambda one: self.values.of(one) if isinstance(one, torch.Tensor) else one, (args, kwargs)
                )
                with _disable_current_modes():
                    func(*plain[0], **plain[1])
            except Exception:
                pass
            else:
                return
            finally:
                self.suspended -= 1
        written = [
            args[place]
            for place, one in enumerate(func._schema.arguments[: len(args)])
            if one.alias_info is not None and one.alias_info.is_write
        ]
        for one in tensors_in([*written, kwargs.get("out")]):
            self.values.forget(one)

    def _remember_values(self, func: Any, short: str, out: Any, args: Any, given: list[Tensor], known: Any) -> None:
        made = tensors_in(out)
        if known is not None:
            for one, value in zip(made, tensors_in(known), strict=False):
                self.values.keep(one, value)
            return
        if func._schema.is_mutable:
            return
        for one in made:
            if has_no_data(one):
                self.values.forget(one)
        self.values.settle(short, out)
        if given and given[0].dim():
            dim = (
                args[2]
                if short == "topk" and len(args) > 2
                else args[1]
                if len(args) > 1 and short != "multinomial"
                else -1
            )
            size = given[0].shape[dim] if isinstance(dim, int) and -given[0].dim() <= dim < given[0].dim() else 1
            self.values.assume_indices(short, out, size)

    # ---------------------------------------------------------------- optimizers

    def __enter__(self) -> Recorder:
        def begin(*_: Any) -> None:
            self.in_optimizer = True

        def end(*_: Any) -> None:
            self.in_optimizer = False

        self._hooks = [register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end)]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


@functools.cache
def _is_made_of_others(func: Any) -> bool:
    """Whether an operator is nothing but calls of others, which autograd would have made."""
    key = "CompositeImplicitAutograd"
    return func.namespace == "aten" and bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))


def _makes_meta(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "meta"
