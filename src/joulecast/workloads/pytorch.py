"""PyTorch programs as workloads: a module with example inputs, or whatever runs inside `capture`.

Nothing is imported from PyTorch until one of them is used. Modules are run on tensors without data: no GPU, no
weights, no arithmetic. What is recorded is what the dispatcher sees, with the module and the phase it belongs to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from joulecast.bounds.dtypes import dtype as format_of
from joulecast.errors import InputError, JoulecastError, MissingExtraError, shortened
from joulecast.workloads.table import Workload

#: Options of a recording.
OPTIONS = ("name", "dtype", "autocast", "attention", "strict", "repeat")
ATTENTIONS = ("fused", "eager")


def is_module(source: Any) -> bool:
    """Whether `source` is a PyTorch module; nothing is imported to find out."""
    return any(
        f"{one.__module__}.{one.__qualname__}" == "torch.nn.modules.module.Module" for one in type(source).__mro__
    )


def needs_torch() -> None:
    """Raise `MissingExtraError` where PyTorch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtraError("recording PyTorch programs", "torch") from None


def trace_module(
    module: Any,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    train: bool = False,
    loss: Callable[[Any], Any] | None = None,
    optimizer: Any = None,
    device: str = "auto",
    **options: Any,
) -> Workload:
    """The operations of a module on example inputs.

    Parameters
    ----------
    module : torch.nn.Module
        On any device; its weights are not read.
    *inputs
        What it is called with: tensors on any device, of which only shapes and the values of indices and masks
        matter.
    kwargs : mapping, optional
        What it is called with by name.
    train : bool
        Record the gradients too, and a step of `optimizer` if there is one; otherwise the forward pass alone.
    loss : callable, optional
        Makes the number to minimise from the module's result; by default its ``loss``, or the sum of what it gives.
    optimizer : callable, optional
        Makes the optimizer from the parameters: ``torch.optim.AdamW``.
    device : str
        ``auto``: without data, fake tensors where that fails, and as it is where both do; or ``meta``, ``fake``,
        ``cpu``.
    **options
        As for `capture`.

    Returns
    -------
    Workload

    Raises
    ------
    InputError
        If the module can't be run on the inputs.
    MissingExtraError
        Without PyTorch.
    """
    needs_torch()
    from joulecast.workloads.pytorch_run import run_module

    if device not in ("auto", "meta", "fake", "cpu"):
        raise InputError(f"device must be auto, meta, fake or cpu, got {shortened(device)!r}")
    settings = checked_options(options)
    settings.setdefault("name", type(module).__name__)
    return run_module(
        module, inputs, dict(kwargs or {}), train=train, loss=loss, optimizer=optimizer, device=device, options=settings
    )


class capture:  # noqa: N801 - used as a verb
    """Record what PyTorch runs, as a context manager or a decorator.

    Parameters
    ----------
    name : str
        What to call the workload.
    dtype : str, optional
        Price fp32 operations in this format: ``bf16``.
    autocast : str, optional
        ``bf16`` or ``fp16``: cast as autocast on a GPU would.
    attention : str
        ``fused`` (default): attention written in pieces is priced as the fused kernel; ``eager``: as it is written.
    strict : bool
        Refuse a program with operators that can't be priced.
    repeat : bool
        Whether layers like earlier ones are counted and not run (on tensors without data only).

    Attributes
    ----------
    workload : Workload
        What was recorded, when it is over; of a decorated function its last call, as the function's ``workload``.

    Examples
    --------
    >>> with capture() as recording:
    ...     loss = model(batch).sum()
    ...     loss.backward()
    >>> recording.workload
    """

    def __init__(self, name: str = "capture", **options: Any) -> None:
        needs_torch()
        self.options = checked_options({"name": name, **options})
        self._session: Any = None
        self._workload: Workload | None = None

    def __enter__(self) -> capture:
        from joulecast.workloads.pytorch_run import new_session

        self._session = new_session(self.options)
        self._session.__enter__()
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        from joulecast.workloads.pytorch_run import finished

        self._session.__exit__(kind, *error)
        if kind is None:
            self._workload = finished(self._session, self.options)
        self._session = None

    @property
    def workload(self) -> Workload:
        """What was recorded; `InputError` before it is over."""
        if self._workload is None:
            raise InputError("nothing is recorded yet: the workload is there when the capture is over")
        return self._workload

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Record each call of `function`; its ``workload`` is that of the last."""

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            one = capture(**self.options)
            with one:
                result = function(*args, **kwargs)
            recorded.workload = one.workload  # type: ignore[attr-defined]
            return result

        return recorded


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a recording, checked by name and value.

    Raises
    ------
    InputError
        For an unknown option or a value that it can't have.
    """
    out = dict(options)
    for name in out:
        if name not in OPTIONS:
            raise InputError(f"unknown option {shortened(name)!r}: a recording takes {', '.join(OPTIONS)}")
    for name in ("dtype", "autocast"):
        if out.get(name) is not None:
            out[name] = format_of(out[name]).name
    if out.get("autocast") not in (None, "bf16", "fp16"):
        raise InputError(f"autocast must be bf16 or fp16, got {out['autocast']}")
    if out.get("attention", "fused") not in ATTENTIONS:
        raise InputError(f"attention must be one of {', '.join(ATTENTIONS)}, got {shortened(out['attention'])!r}")
    for name in ("strict", "repeat"):
        if not isinstance(out.get(name, False), bool):
            raise InputError(f"{name} must be true or false, got {shortened(out[name])!r}")
    return out


def refused(what: str, error: BaseException) -> InputError:
    """An `InputError` for code of the user's that failed while it was recorded."""
    if isinstance(error, JoulecastError):
        return InputError(str(error))
    text = str(error).strip().splitlines()
    return InputError(f"{what} failed: {type(error).__name__}: {shortened(text[0] if text else 'no message', 160)}")
