"""Models of transformers that no reader of ours knows: built without weights from their config, run without data.

Only classes of the installed transformers are built: a config that names code of its own has that entry taken out, so
that nothing is downloaded, run or asked. The quantisation block is taken out too: formats are ours to price.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from joulecast.errors import InputError, MissingExtraError, shortened
from joulecast.workloads.request import Request
from joulecast.workloads.table import Workload
from joulecast.workloads.transformers_configs import completed

#: Entries of a config that are not the architecture's: code of its own, quantisation, formats, what wrote it.
_DROPPED = ("auto_map", "quantization_config", "torch_dtype", "dtype", "transformers_version", "_name_or_path",
            "compression_config", "_attn_implementation", "_attn_implementation_autoset")  # fmt: skip

#: Attribute under which a model built here keeps what is known of its small buffers.
VALUES = "_joulecast_values"

#: How many of a type's classes are tried.
_CLASSES = 4

#: Tables of transformers that name a class for a model type, in the order in which they are asked.
_TABLES = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES", "MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES",
    "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES", "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES",
    "MODEL_FOR_CTC_MAPPING_NAMES", "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES", "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES",
    "MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TO_IMAGE_MAPPING_NAMES",
    "MODEL_FOR_KEYPOINT_DETECTION_MAPPING_NAMES", "MODEL_FOR_KEYPOINT_MATCHING_MAPPING_NAMES",
    "MODEL_FOR_MASK_GENERATION_MAPPING_NAMES", "MODEL_FOR_POSE_ESTIMATION_MAPPING_NAMES",
    "MODEL_FOR_TIME_SERIES_PREDICTION_MAPPING_NAMES", "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
)  # fmt: skip


def from_transformers(values: Mapping[str, Any], request: Request, name: str) -> Workload:
    """The workload of a model from its config, through the classes of transformers.

    Parameters
    ----------
    values : mapping
        Of a ``config.json``; of its ``quantization_config`` nothing is taken.
    request : Request
    name : str

    Returns
    -------
    Workload

    Raises
    ------
    InputError
        If transformers does not know the type, or the model can't be built or run.
    MissingExtraError
        Without PyTorch and transformers.
    """
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError:
        raise MissingExtraError(f"model type {shortened(values.get('model_type'), 40)!r}", "torch") from None
    from joulecast.workloads.transformers_formats import packed_experts
    from joulecast.workloads.transformers_run import traced

    with offline():
        config = model_config(values)
        return traced(config, request, name, experts=packed_experts(values))


def known_types() -> frozenset[str]:
    """Model types of the installed transformers; none without it."""
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    except ImportError:
        return frozenset()
    return frozenset(CONFIG_MAPPING_NAMES)


def default_values(model_type: str) -> dict[str, Any]:
    """What transformers takes for the entries of a config that are left out; empty for a type that it does not know.

    Raises
    ------
    MissingExtraError
        Without transformers.
    """
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
    except ImportError:
        raise MissingExtraError(f"model type {shortened(model_type, 40)!r}", "torch") from None
    if model_type not in CONFIG_MAPPING_NAMES:
        return {}
    with offline():
        try:
            config = CONFIG_MAPPING[model_type]()
            values = {**config.to_dict(), **{ours: getattr(config, ours) for ours in config.attribute_map}}
        except Exception:  # a type without defaults
            return {}
    return {key: value for key, value in _plain(values).items() if value is not None}


@contextmanager
def offline() -> Iterator[None]:
    """No network, no questions on the terminal, no chatter of transformers while the context lasts."""
    kept = {key: os.environ.get(key) for key in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    os.environ.update(dict.fromkeys(kept, "1"))
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        for key, value in kept.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def model_config(values: Mapping[str, Any]) -> Any:
    """The config object of transformers for the entries of a ``config.json``.

    Raises
    ------
    InputError
        For a model type that the installed transformers does not know, or entries that it refuses.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING_NAMES:
        near = difflib.get_close_matches(str(model_type), list(CONFIG_MAPPING_NAMES), n=2, cutoff=0.6)
        hint = f"; nearest: {' or '.join(near)}" if near else ""
        raise InputError(f"the installed transformers knows no model type {shortened(model_type, 40)!r}{hint}")
    try:
        config = CONFIG_MAPPING[model_type].from_dict(_plain(values))
    except InputError:
        raise
    except Exception as error:
        raise _refused(f"the config of {model_type}", error) from error
    return with_lists(config)


def with_lists(config: Any) -> Any:
    """The config with lists where its defaults are tuples, as from a file; what its class makes tuples of stays so."""
    lists = {name: list(value) for name, value in vars(config).items() if isinstance(value, tuple)}
    read = None
    with suppress(Exception):  # entries that go together with others of this config
        read = type(config)(**lists) if lists else None
    for name, value in lists.items():
        with suppress(Exception):  # a config may refuse it
            setattr(config, name, getattr(read, name, value))
    return config


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Entries that describe the architecture, nested ones too."""
    return {key: _plain(one) if isinstance(one, Mapping) else one for key, one in values.items() if key not in _DROPPED}


def model_classes(config: Any) -> list[Any]:
    """Classes of transformers for a config, the best first: the one that it names, then those of its type.

    Raises
    ------
    InputError
        If there is none.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    classes: list[Any] = []
    for named in getattr(config, "architectures", None) or ():
        found = getattr(transformers, str(named), None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            classes.append(found)
    model_type = config.model_type
    several = sum(hasattr(config, one) for one in ("text_config", "vision_config", "audio_config")) > 1
    encoder = model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    tables = [one for one in _TABLES if not (encoder and "CAUSAL_LM" in one and "SEQ" not in one)]
    if getattr(config, "is_encoder_decoder", False):
        tables.sort(key=lambda one: "SEQ" not in one)
    if any(hasattr(value, "model_type") for value in vars(config).values()):
        tables.sort(key=lambda one: one == "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")
    if several:
        tables = [one for one in tables if "IMAGE_CLASSIFICATION" not in one]
    if encoder:
        tables.insert(0, "MODEL_MAPPING_NAMES")
    tables += ["MODEL_MAPPING_NAMES", *(one for one in dir(modeling_auto) if one.endswith("_MAPPING_NAMES"))]
    for table in tables:
        name = getattr(modeling_auto, table, {}).get(model_type) if table != "CONFIG_MAPPING_NAMES" else None
        found = _class(name if isinstance(name, str) else name[0], model_type) if name else None
        if found is not None and found not in classes:
            classes.append(found)
    if classes:
        return classes
    raise InputError(f"transformers has a config of type {model_type!r} and no model for it")


def _class(name: str, model_type: str) -> Any:
    """A class of transformers by its name: of what it hands out, or else of a type's module; None if in neither."""
    import transformers
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    found = getattr(transformers, name, None)
    if found is not None:
        return found
    module = model_type_to_module_name(model_type)
    with suppress(ImportError):
        return getattr(importlib.import_module(f"transformers.models.{module}.modeling_{module}"), name, None)
    return None


def build_model(config: Any, dtype: Any, cls: Any = None) -> Any:
    """The model of a config without its weights, in a format of PyTorch's.

    Parameters
    ----------
    config : PretrainedConfig
    dtype : torch.dtype
    cls : type, optional
        The first of `model_classes` that can be built, if not given.

    Raises
    ------
    InputError
        If it can't be built.
    """
    import torch

    from joulecast.workloads.pytorch_recorder import Recorder
    from joulecast.workloads.pytorch_values import Constants

    first: InputError | None = None
    classes = [cls] if cls is not None else model_classes(config)[:_CLASSES]
    while classes:
        recorder = Recorder()
        try:
            with torch.device("meta"), recorder, recorder.pause(), Constants(recorder.values):
                model = classes[0](config)
        except Exception as error:
            if completed(config, error):
                continue
            refused = _refused(f"building {classes.pop(0).__name__}", error)
            refused.__cause__ = error
            first = first or refused
            continue
        model = model.to(dtype).eval()
        object.__setattr__(model, VALUES, recorder.values)
        return model
    raise first or InputError(f"transformers has no model for type {config.model_type!r}")


def _refused(what: str, error: Exception) -> InputError:
    lines = str(error).strip().splitlines()
    return InputError(f"{what} failed: {type(error).__name__}: {shortened(lines[0] if lines else 'no message', 160)}")
