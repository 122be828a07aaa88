"""Values of small tensors beside their shapes, so that code which branches on masks and indices runs without weights.

Meta tensors have shapes and no values, and models look at values: whether a mask is full, which experts are hit. A
tensor whose value follows from constants and inputs keeps it here, by its memory; indices that depend on weights
(the experts that a router picks) are made up, spread evenly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from joulecast.workloads.pytorch_shapes import tensors_in

#: Largest tensor whose value is kept, and the largest of words that only a mask has. [elements]
LARGEST_VALUE = 2**18
LARGEST_MASK = 2**23

#: Whole numbers that are kept from the moment that memory is made for them. [elements]
_FEW = 1024

#: Operators whose results are indices that a model acts on, and which of their results those are.
_INDICES = {"topk": 1, "sort": 1, "argsort": 0, "argmax": 0, "argmin": 0, "multinomial": 0, "max": 1, "min": 1}

#: Operators that make masks and whole numbers of others.
_SETTLED = frozenset({"gt", "lt", "ge", "le", "_to_copy"})

#: Operators whose results have a size that depends on values.
_SIZED = "nonzero masked_select _unique2 unique_consecutive unique_dim bincount repeat_interleave nonzero_numpy"
SIZED_BY_VALUES = frozenset(_SIZED.split())


class Places:
    """Memories by their address, none of which is given to another memory while this lasts.

    A memory is told by where it lies, and one that is freed leaves its place to the next: which one that is depends on
    the allocator. A weak reference keeps the place and not the memory.
    """

    def __init__(self) -> None:
        self._kept: dict[int, StorageWeakRef] = {}

    def of(self, tensor: Tensor) -> int:
        """Address of the memory of `tensor`."""
        storage = tensor.untyped_storage()
        key = int(storage._cdata)
        if key not in self._kept:
            self._kept[key] = StorageWeakRef(storage)
        return key

    def take(self, other: Places) -> None:
        """Keep what `other` keeps."""
        self._kept.update(other._kept)


class Values:
    """Known values of tensors without data, by their memory.

    Notes
    -----
    A view shares memory with its base, so that its value is there without being computed. Memory whose value is not
    known is not in the table; an operator that writes there takes it out.
    """

    def __init__(self) -> None:
        self._storages: dict[int, Any] = {}
        self._places = Places()
        self.assumed: set[str] = set()
        self.settled = False

    def take(self, other: Values) -> None:
        """Know what `other` knows."""
        self._storages.update(other._storages)
        self._places.take(other._places)

    def of(self, tensor: Tensor) -> Tensor | None:
        """The value of `tensor`: its own data where it has some, what is known of it, or None."""
        if not has_no_data(tensor):
            return tensor
        storage = self._storages.get(tensor.untyped_storage()._cdata)
        if storage is None:
            return None
        with _disable_current_modes():
            view = torch.empty(0, dtype=tensor.dtype)
            return view.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())

    def knows(self, tensor: Tensor) -> bool:
        """Whether `tensor` has a value."""
        return not has_no_data(tensor) or tensor.untyped_storage()._cdata in self._storages

    def keep(self, tensor: Tensor, value: Tensor) -> None:
        """Keep `value` for all of the memory of `tensor`, whose layout it must have."""
        self._storages[self._places.of(tensor)] = value.untyped_storage()

    def share(self, tensor: Tensor, source: Tensor) -> None:
        """`tensor` has the memory of `source` under another name: a view that a kernel without data made anew."""
        key, other = tensor.untyped_storage(), source.untyped_storage()
        if key._cdata != other._cdata and other._cdata in self._storages and key.nbytes() == other.nbytes():
            self._storages[self._places.of(tensor)] = self._storages[other._cdata]

    def begin(self, tensor: Tensor) -> None:
        """Memory not yet written: of a few whole numbers zeros are kept, which a model fills in one by one."""
        if has_no_data(tensor) and not tensor.dtype.is_floating_point and tensor.numel() <= _FEW:
            with _disable_current_modes():
                self.keep(tensor, torch.zeros(max(tensor.untyped_storage().nbytes(), 1), dtype=torch.uint8))
        else:
            self.forget(tensor)

    def make_up(self, tensor: Tensor) -> None:
        """Take whole numbers that came without data as ones, a mask as full."""
        with _disable_current_modes():
            size = tensor.untyped_storage().nbytes() // tensor.element_size()
            self.keep(tensor, torch.ones(max(size, 1), dtype=tensor.dtype))
        self.assumed.add("whole numbers without data are taken as 1, masks as full")

    def forget(self, tensor: Tensor) -> None:
        """The value of the memory of `tensor` is no longer known."""
        self._storages.pop(tensor.untyped_storage()._cdata, None)

    def without_data(self, tensor: Tensor, like: Tensor | None = None) -> Tensor:
        """A meta tensor in place of `tensor`, its value kept where it is small."""
        made = empty_like_layout(tensor, like)
        if tensor.numel() <= (LARGEST_MASK if tensor.dtype is torch.bool else LARGEST_VALUE):
            with _disable_current_modes():
                copy = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
                self.keep(made, copy.copy_(tensor.detach()))
        else:
            self.forget(made)
        return made

    def computed(self, func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        """The result of an operator all of whose `tensors` have values, as data; None where it has none or is large."""
        size = sum(one.numel() for one in tensors)
        limit = LARGEST_MASK if any(one.dtype is torch.bool for one in tensors) else LARGEST_VALUE
        if size > 2 * limit or not all(self.knows(one) for one in tensors):
            return None
        if not tensors and not _small_factory(args, kwargs):
            return None
        try:
            plain = tree_map(lambda one: self.of(one) if isinstance(one, torch.Tensor) else one, (tuple(args), kwargs))
            if "device" in plain[1]:
                plain[1]["device"] = torch.device("cpu")
            with _disable_current_modes():
                return func(*plain[0], **plain[1])
        except Exception:
            return None

    def settle(self, name: str, out: Any) -> None:
        """Where asked to (`settled`), know what follows from weights: comparisons hold, whole numbers are 1.

        A program that takes a mask and its opposite, or lengths and their sum, runs only where they agree.
        """
        if not self.settled or name not in _SETTLED:
            return
        for one in tensors_in(out):
            if has_no_data(one) and not one.dtype.is_floating_point and one.numel() <= LARGEST_VALUE:
                with _disable_current_modes():
                    self.keep(one, torch.ones(one.untyped_storage().nbytes() // one.element_size(), dtype=one.dtype))
                self.assumed.add("comparisons that depend on weights are taken to hold, whole numbers as 1")

    def assume_indices(self, name: str, out: Any, size: int) -> None:
        """Give indices that depend on weights values that are spread evenly over `size` choices."""
        place = _INDICES.get(name)
        results = tensors_in(out)
        if place is None or place >= len(results):
            return
        index = results[place]
        if index.dtype is not torch.int64 or not has_no_data(index) or index.numel() > LARGEST_VALUE:
            return
        with _disable_current_modes():
            even = torch.arange(index.numel()).remainder_(max(size, 1)).view(index.shape)
            layout = torch.empty_strided(index.size(), index.stride(), dtype=torch.int64)
            self.keep(index, layout.copy_(even))
        self.assumed.add("choices that depend on weights are spread evenly")


class Constants(TorchFunctionMode):  # type: ignore[misc]
    """A function mode that keeps what tensors without data are made from: numbers in lists lose them on their way."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self.values = values

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.__getitem__, Tensor.__setitem__) and has_no_data(args[0]):
            args = (args[0], _with_tensors(args[1]), *args[2:])
        out = func(*args, **kwargs)
        if func not in (torch.tensor, torch.as_tensor) or not isinstance(out, torch.Tensor) or not has_no_data(out):
            return out
        if out.numel() <= LARGEST_VALUE and not any(isinstance(one, torch.Tensor) for one in args):
            numbers = tree_map(lambda one: self.values.of(one) if isinstance(one, torch.Tensor) else one, args)
            if any(one is None for one in tree_leaves(numbers)):
                return out  # a number in the list is not known
            plain = {name: one for name, one in kwargs.items() if name != "device"}
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                self.values.keep(out, func(*numbers, **plain))
        return out


def has_no_data(tensor: Tensor) -> bool:
    """Whether a tensor has a shape only: on the meta device, or fake."""
    return tensor.is_meta or type(tensor).__name__ == "FakeTensor"


def empty_like_layout(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """A tensor without data in the layout of `tensor`; where `like` is fake, of its kind."""
    if like is not None and not like.is_meta:
        return like.new_empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def _with_tensors(index: Any) -> Any:
    """An index whose lists of numbers are tensors with data; PyTorch makes such ones of a tensor's kind, without."""
    if isinstance(index, tuple):
        return tuple(torch.tensor(one) if _is_of_numbers(one) else one for one in index)
    return torch.tensor(index) if isinstance(index, list) and _is_of_numbers(index) else index


def _is_of_numbers(one: Any) -> bool:
    return isinstance(one, list | tuple) and bool(one) and all(isinstance(number, int) for number in one)


def _small_factory(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operator without tensors makes a small one from numbers."""
    size = 1
    for one in (*args, *kwargs.values()):
        if isinstance(one, list | tuple | torch.Size):
            for side in one:
                size *= side if isinstance(side, int) else 1
        elif isinstance(one, int) and not isinstance(one, bool):
            size = max(size, one)
    return size <= LARGEST_VALUE
