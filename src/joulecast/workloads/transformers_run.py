"""Runs models of transformers without data: one pass, or a prefill and a few decoding steps that stand for all."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from joulecast.errors import InputError
from joulecast.workloads.models.net import decode_steps
from joulecast.workloads.pytorch_run import finished, meta_inputs, new_session
from joulecast.workloads.pytorch_session import Session
from joulecast.workloads.request import Request
from joulecast.workloads.table import Workload
from joulecast.workloads.transformers_configs import TAKEN, completed, completed_result
from joulecast.workloads.transformers_formats import in_formats
from joulecast.workloads.transformers_inputs import (
    Sizes,
    attempts,
    float_inputs,
    forward_names,
    input_makers,
    required_names,
)
from joulecast.workloads.transformers_layouts import attribute
from joulecast.workloads.transformers_models import VALUES, build_model, model_classes
from joulecast.workloads.transformers_repairs import repaired
from joulecast.workloads.workload_join import joined_workloads, renamed_passes

#: How often inputs are changed as the model asks before other ones are tried.
_REPAIRS = 4

#: Tokens that Whisper's decoder starts from: language, task, and that there are no times.
_SPOKEN = 4
_FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


def traced(config: Any, request: Request, name: str, model: Any = None, experts: str = "") -> Workload:
    """The workload of a model of transformers.

    Parameters
    ----------
    config : PretrainedConfig
    request : Request
        Formats are applied afterwards; the model is run in that of its activations.
    name : str
    model : PreTrainedModel, optional
        Built already. Where it can't be run, two others of its type's classes are tried.
    experts : str
        Format of the checkpoint's experts; see `in_formats`.

    Returns
    -------
    Workload

    Raises
    ------
    InputError
        If the model can't be built or run on inputs made for it.
    """
    dtype = _FORMATS[request.activation_dtype]
    model = build_model(config, dtype) if model is None else model
    try:
        return in_formats(_traced(config, request, name, model, dtype), request, experts)
    except InputError as error:
        first = error
    for cls in [one for one in model_classes(config) if one is not type(model)][:2]:
        try:
            made = in_formats(_traced(config, request, name, build_model(config, dtype, cls), dtype), request, experts)
        except InputError:
            continue
        note = f"{type(model).__name__} could not be run: {cls.__name__} is"
        return replace(made, notes=(*made.notes, note))
    raise first


def _traced(config: Any, request: Request, name: str, model: Any, dtype: Any, /, **options: Any) -> Workload:
    """The workload of one class of a model, run in `dtype`, or in fp32 where it runs in nothing else."""
    given_config = config
    whole, model = model, _that_runs(model)
    config = config if model is whole else model.config
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    limit = attribute(text, "max_position_embeddings", "n_positions")
    tokens = request.prompt_tokens or min(512, limit if isinstance(limit, int) and limit > 0 else 512)
    heard = config.model_type == "whisper"  # its prompt is the decoder's
    start = (request.prompt_tokens or _SPOKEN) if heard else request.decoder_tokens
    sizes = Sizes(request.batch, tokens, start, request.image_size)
    first: BaseException | None = None
    single = replace(sizes, tokens=1, past=tokens)
    extras, names = _extras(model, request), forward_names(model)
    tries = [(sizes, inputs, extra) for extra in extras for inputs in attempts(model, config, sizes)]
    tries += [(single, inputs, extra) for extra in extras[:1] for inputs in attempts(model, config, single)[:1]]
    for taken, inputs, extra in tries:
        makers = {key: make for key, make in input_makers(config, taken).items() if key in names}
        given, settled = float_inputs({**inputs, **extra}, dtype), False
        with ExitStack() as undo:
            for _ in range(_REPAIRS):
                session = new_session({}, getattr(whole, VALUES, None))
                session.recorder.values.settled = settled
                try:
                    out = _run(session, model, given)
                except Exception as error:
                    first = first or error
                    if completed(model.config, error) or completed_result(error, undo):
                        continue
                    more = repaired(given, error, config, makers, "mm_token_type_ids" in names)
                    if more is not None:
                        given = float_inputs(more, dtype)
                    elif session.recorder.values.assumed and not settled:
                        settled = True
                    else:
                        break
                    continue
                made = _finished(session, model, request, {"name": name, **options}, given, out, taken.tokens)
                part = () if model is whole else (f"of its parts {type(model).__name__} alone is run",)
                lone = ("it takes one token at a time",) if taken is single else ()
                return replace(made, notes=(*made.notes, *part, *lone))
    if dtype is not torch.float32 and not options:
        return _traced(given_config, request, name, whole.float(), torch.float32, dtype=request.activation_dtype)
    raise _failed(model, first)


def _that_runs(model: Any) -> Any:
    """The model, or its first part that can be called where the whole can't: it has no forward pass, or asks too much.

    Where no part can be called either and the model encodes, that is its forward pass.
    """
    known = input_makers(getattr(model, "config", None), Sizes())
    if _callable(model, known):
        return model
    for one in model.children():
        if hasattr(one, "config") and _callable(one, known):
            return one
    if callable(getattr(model, "encode", None)):
        model.forward = model.encode
    return model


def _callable(model: Any, known: Mapping[str, Any]) -> bool:
    """Whether a model has a forward pass that asks for nothing but `known` inputs."""
    return forward_names(model) != ["input"] and all(name in known for name in required_names(model))


def _failed(model: Any, error: BaseException | None) -> InputError:
    from joulecast.workloads.pytorch import refused

    return refused(f"running {type(model).__name__} on inputs made for it", error or RuntimeError("no inputs known"))


def _extras(model: Any, request: Request) -> list[dict[str, Any]]:
    """Further arguments to try: with a cache where the model generates, and without."""
    names = forward_names(model)
    scores = {"logits_to_keep": 1} if "logits_to_keep" in names and request.logits == "last" else {}
    if "use_cache" not in names:
        return [scores]
    generates = "CausalLM" in type(model).__name__ or hasattr(model, "lm_head")
    return [{**scores, "use_cache": cached} for cached in ((True, False) if generates else (False,))]


def _run(session: Session, model: Any, inputs: Mapping[str, Any]) -> Any:
    given = meta_inputs(dict(inputs), session)
    checked = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)  # it looks at values, and there are none
    try:
        return _called(session, model, given)
    finally:
        torch.distributions.Distribution.set_default_validate_args(checked)


def _called(session: Session, model: Any, given: Mapping[str, Any]) -> Any:
    with torch.no_grad(), torch.random.fork_rng(devices=[]), session:
        torch.manual_seed(0)  # noise of known values decides on masks, and so on sizes
        return model(**given)


def _finished(
    session: Session,
    model: Any,
    request: Request,
    options: dict[str, Any],
    inputs: Mapping[str, Any],
    out: Any,
    tokens: int,
) -> Workload:
    name = options["name"]
    cache = getattr(out, "past_key_values", None) or getattr(out, "cache", None)
    cached = _cache_bytes(cache)
    workload = finished(session, options, (), dict(inputs), model)
    notes = list(getattr(model.config, TAKEN, ()))
    names = forward_names(model)
    takes = [one for one in ("pixel_values", "input_features", "input_values") if one in names]
    if takes and not any(one in inputs for one in takes):
        notes.append(f"run on text alone: {', '.join(takes)} could not be made")
    if cached:
        workload = renamed_passes(workload, phase="prefill")
    info = {**workload.info, "model": name, "batch": request.batch, "generate_tokens": request.generate_tokens}
    text = model.config.get_text_config(decoder=True)
    for key, names_ in (("num_heads", ("num_attention_heads", "n_head")), ("num_kv_heads", ("num_key_value_heads",)),
                        ("hidden_size", ("hidden_size", "n_embd", "d_model")), ("vocab_size", ("vocab_size",)),
                        ("num_layers", ("num_hidden_layers", "n_layer"))):  # fmt: skip
        value = attribute(text, *names_)
        if isinstance(value, int):
            info[key] = value
    info["prompt_tokens"] = tokens
    workload = replace(workload, info=MappingProxyType(info), notes=(*workload.notes, *notes))
    if cached:
        share = (tokens + request.generate_tokens) / max(tokens, 1)
        workload = replace(workload, memory=replace(workload.memory, kv_cache_bytes=cached * share))
    if request.generate_tokens > 1:
        if not cached:
            raise InputError(f"{name} fills no cache when it is run: leave generate_tokens at 0")
        workload = _with_decoding(workload, model, request, options, cache, tokens)
    return workload


def _cache_bytes(cache: Any) -> float:
    total = 0.0
    for layer in getattr(cache, "layers", None) or ():
        for key in ("keys", "values"):
            one = getattr(layer, key, None)
            if isinstance(one, torch.Tensor):
                total += one.numel() * one.element_size()
    return total


def _with_decoding(
    workload: Workload, model: Any, request: Request, options: dict[str, Any], cache: Any, prompt: int
) -> Workload:
    """The prefill's workload with decoding steps, a few cache lengths standing for all; see `decode_steps`."""
    steps = []
    for past, repeats in decode_steps(prompt, request.generate_tokens):
        session = new_session({}, getattr(model, VALUES, None))
        _filled(cache, past)
        ids = meta_inputs(torch.ones((request.batch, 1), dtype=torch.int64), session)
        name = "past_key_values" if "past_key_values" in forward_names(model) else "cache"
        with torch.no_grad(), session:
            model(input_ids=ids, use_cache=True, **{name: cache})
        step = finished(session, options, (), {}, model)
        decode = {"phase": "decode", "repeats": float(repeats), "tokens": float(request.batch)}
        steps.append(renamed_passes(step, **decode))
    return joined_workloads(workload, steps)


def _filled(cache: Any, length: int) -> None:
    """Make a cache as it is after `length` tokens."""
    for layer in cache.layers:
        window = getattr(layer, "sliding_window", None)
        for key in ("keys", "values"):
            one = getattr(layer, key, None)
            if not isinstance(one, torch.Tensor) or one.dim() != 4:
                continue
            held = min(length, window - 1) if isinstance(window, int) and window > 1 else length
            setattr(layer, key, one.new_empty((one.shape[0], one.shape[1], held, one.shape[3])))
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length = length
