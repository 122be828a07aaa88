"""Runs a module without its data and makes a workload of what was recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_flatten, tree_map

from joulecast.errors import InputError
from joulecast.workloads.events import Event
from joulecast.workloads.pytorch import refused
from joulecast.workloads.pytorch_attention import fuse_attention
from joulecast.workloads.pytorch_build import counts_of, workload_of
from joulecast.workloads.pytorch_fusion import fused_events
from joulecast.workloads.pytorch_masks import is_mask
from joulecast.workloads.pytorch_session import Session
from joulecast.workloads.pytorch_shapes import FORMATS, tensors_in
from joulecast.workloads.pytorch_values import Values, has_no_data
from joulecast.workloads.table import Workload

#: Numbers of an input whose values are kept: sizes and scales rather than data. [elements]
_SMALL = 16

_TORCH_FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def new_session(options: Mapping[str, Any], values: Values | None = None) -> Session:
    """A recording as the options ask for; `values` are known of tensors without data that were made before."""
    autocast = options.get("autocast")
    return Session(_TORCH_FORMATS[autocast] if autocast else None, repeat=options.get("repeat", True), values=values)


def run_module(
    module: Any,
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    train: bool,
    loss: Callable[[Any], Any] | None,
    optimizer: Any,
    device: str,
    options: dict[str, Any],
) -> Workload:
    """The workload of a module on inputs, by the first way of running it that works."""
    given = [one for one in tree_flatten([inputs, kwargs])[0] if isinstance(one, torch.Tensor)]
    if any(one.is_nested for one in given):
        raise InputError(f"{type(module).__name__} is given a nested tensor, which is not read: pad it")
    if device != "cpu" and any(base.__name__ == "FSDPModule" for base in type(module).__mro__):
        name = type(module).__name__
        raise InputError(
            f"{name} is sharded by fully_shard and needs its weights: give the module before that, or device='cpu'"
        )
    if any(is_lazy(one) for one in (*module.parameters(), *module.buffers())):
        raise InputError(f"{type(module).__name__} has weights of no size yet: run it once on an example")
    if device == "auto" and any(one.layout is not torch.strided for one in given):
        device = "cpu"  # sparse tensors are nothing without their data
    ways = {"auto": ("meta", "fake", "cpu"), "meta": ("meta",), "fake": ("fake",), "cpu": ("cpu",)}[device]
    first: BaseException | None = None
    for way in ways:
        if way == "cpu" and any(has_no_data(one) for one in (*module.parameters(), *module.buffers())):
            continue
        session = new_session(options)
        try:
            with _quiet(), _as_asked(module, way, session) as convert, torch.random.fork_rng(devices=[]):
                args, named = convert(inputs), convert(kwargs)
                with session:
                    _step(session, module, args, named, train, loss, optimizer)
        except Exception as error:
            if isinstance(error, InputError):
                raise
            first = first or error
            continue
        return finished(session, options, inputs, kwargs, module)
    raise refused(f"running {type(module).__name__} on the example inputs", first or RuntimeError("no way to run it"))


@contextmanager
def _quiet() -> Iterator[None]:
    """No log of PyTorch's own of a way that does not work out: what comes of it is told in the end."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was


def _step(session: Session, module: Any, args: Any, kwargs: Any, train: bool, loss: Any, optimizer: Any) -> None:
    was = module.training
    with suppress(NotImplementedError):  # an exported program is in one mode for good
        module.train(train)
    try:
        if not train:
            with torch.no_grad():
                module(*args, **kwargs)
            return
        with torch.enable_grad():
            stepper = _warm_optimizer(module, optimizer, session) if optimizer is not None else None
            out = module(*args, **kwargs)
            value = loss(out) if loss is not None else _usual_loss(out)
            value.backward()
            if stepper is not None:
                stepper.step()
    finally:
        with suppress(NotImplementedError):
            module.train(was)


def _warm_optimizer(module: Any, optimizer: Any, session: Session) -> Any:
    """The optimizer after a first step, which makes its state and is not recorded."""
    parameters = [one for one in module.parameters() if one.requires_grad]
    with session.recorder.pause():
        stepper = optimizer(parameters)
        if all(has_no_data(one) for one in parameters):
            for one in parameters:
                one.grad = torch.empty_like(one)
            stepper.step()
            stepper.zero_grad(set_to_none=True)
    return stepper


def _usual_loss(out: Any) -> Tensor:
    """A model's own loss, or the sum of what it gives."""
    found = getattr(out, "loss", None)
    if isinstance(found, torch.Tensor):
        return found
    values = out.values() if hasattr(out, "values") and not isinstance(out, torch.Tensor) else [out]
    floats = [one for one in tensors_in(list(values)) if one.dtype.is_floating_point and one.requires_grad]
    if not floats:
        raise InputError("the module gives nothing that has a gradient: give a loss")
    return floats[0].sum()


@contextmanager
def _as_asked(module: Any, way: str, session: Session) -> Iterator[Callable[[Any], Any]]:
    """The module's tensors as `way` says while the context lasts; gives what converts its inputs likewise."""
    if way == "cpu":
        yield lambda value: value
        return
    mode = None
    if way == "fake":
        from torch._subclasses.fake_tensor import FakeTensorMode

        mode = FakeTensorMode(allow_non_fake_inputs=True)
    changed: dict[int, Any] = {}

    def bare(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        found = changed.get(id(one))
        if found is not None:
            return found[1]
        made = _without_data(one, mode, session)
        changed[id(one)] = (one, made)
        return made

    with ExitStack() as stack:
        for one in module.modules():
            for group in (one._parameters, one._buffers):
                for name, value in list(group.items()):
                    if value is not None and (mode is not None or not value.is_meta):
                        group[name] = bare(value)
                        stack.callback(group.__setitem__, name, value)
        if mode is not None:
            stack.enter_context(mode)
        yield lambda value: tree_map(bare, value)


def _without_data(tensor: Tensor, mode: Any, session: Session) -> Tensor:
    if has_no_data(tensor) and mode is None:
        return tensor
    parameter = isinstance(tensor, torch.nn.Parameter)
    values = session.recorder.values
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        made = tensor.to("meta") if mode is None else mode.from_tensor(tensor)  # a subclass keeps what it is
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad) if parameter else made
    with torch.no_grad():
        small = not tensor.dtype.is_floating_point or tensor.numel() <= _SMALL
        worth = not parameter and not has_no_data(tensor) and (small or (tensor.dim() > 1 and is_mask(tensor)))
        bare = values.without_data(tensor) if worth else None
        if bare is None:
            bare = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
        made = bare
        if mode is not None:
            with mode:
                made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
            known = values.of(bare)
            if known is not None:
                values.keep(made, known)
    if parameter:
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_() if tensor.requires_grad else made


def meta_inputs(value: Any, session: Session) -> Any:
    """Inputs without their data, values of small and of integer tensors kept."""
    return tree_map(lambda one: _without_data(one, None, session) if isinstance(one, torch.Tensor) else one, value)


def finished(
    session: Session, options: Mapping[str, Any], inputs: Any = (), kwargs: Any = None, module: Any = None
) -> Workload:
    """The workload of a recording that is over."""
    events = session.recorder.events
    found = fuse_attention(events) if options.get("attention", "fused") == "fused" else 0
    if options.get("dtype"):
        _in_format(events, options["dtype"])
    notes = []
    if found:
        notes.append("attention written in pieces is priced fused: attention='eager' prices it as written")
    counts = counts_of(events)
    facts: dict[str, Any] = {
        "name": options.get("name") or "capture",
        "info": _info(session, inputs, kwargs or {}, module),
        "notes": tuple(notes),
    }
    compiled = workload_of(*fused_events(events, counts), session.recorder, **facts)
    workload = replace(workload_of(events, counts, session.recorder, **facts), compiled=compiled)
    if options.get("strict") and workload.unpriced:
        names = ", ".join(sorted(workload.unpriced))
        raise InputError(
            f"strict: {workload.name} runs operators that can't be priced: {names}; @jc.op_cost prices them"
        )
    return workload


def _in_format(events: list[Event], name: str) -> None:
    """Rows in fp32 become rows of another format; matrix multiplies in tf32 too."""
    wide = ("fp32", "tf32")
    for event in events:
        event.rows = [
            (kind, {key: name if key.endswith("dtype") and value in wide else value for key, value in columns.items()})
            for kind, columns in event.rows
        ]


def _info(session: Session, inputs: Any, kwargs: Any, module: Any) -> dict[str, Any]:
    recorder = session.recorder
    roots = [module] if module is not None else session.roots
    formats: dict[str, float] = {}
    for one in (p for root in roots for p in root.parameters()):
        formats[FORMATS.get(one.dtype, "fp8")] = formats.get(FORMATS.get(one.dtype, "fp8"), 0.0) + one.numel()
    first = next((one for one in tensors_in([inputs, kwargs]) if one.dim()), None)
    facts: dict[str, Any] = {
        "source": "pytorch",
        "dtype": max(formats, key=lambda key: formats[key]) if formats else "fp32",
        "batch": int(first.shape[0]) if first is not None else 1,
        "operators": int(np.sum(counts_of(recorder.events))),
        "module_calls": session.calls / max(session.outer_calls, 1),
    }
    config = getattr(roots[0], "config", None) if roots else None
    family = getattr(config, "model_type", None)
    if isinstance(family, str):
        facts["family"] = family
    for key in ("hidden_size", "num_hidden_layers", "vocab_size"):
        value = getattr(config, key, None)
        if isinstance(value, int):
            facts["num_layers" if key == "num_hidden_layers" else key] = value
    return facts
