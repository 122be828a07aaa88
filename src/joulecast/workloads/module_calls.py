"""How often a model's Python code calls modules without weights of their own: each call costs an eager host time.

Counted with hooks on the modules of transformers 5.24: norms, activations, dropouts, and the modules that hold
others (a layer, its attention, its MLP). The code of BERT's kin is nested deeper than that of decoders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: By model type: calls a layer, and calls besides.
_CALLS: Mapping[str, tuple[float, float]] = {
    "albert": (7, 9),
    "aquila": (6, 5),
    "bert": (11, 10),
    "bloom": (7, 5),
    "camembert": (11, 10),
    "deepseek_v2": (8, 4),
    "deepseek_v3": (9, 2),
    "distilbert": (7, 7),
    "falcon": (5, 5),
    "gemma": (6, 5),
    "gemma2": (8, 5),
    "gemma3": (10, 6),
    "gemma3_text": (10, 6),
    "gpt2": (8, 6),
    "gpt_neox": (8, 6),
    "gpt_oss": (5, 5),
    "gptj": (7, 6),
    "kimi_k2": (9, 2),
    "llama": (6, 5),
    "mistral": (6, 5),
    "mixtral": (5, 5),
    "mobilevit": (24.4, 0),
    "mpt": (7, 4),
    "olmo2": (8, 5),
    "opt": (5, 5),
    "phi": (7, 6),
    "phi3": (8, 5),
    "qwen2": (6, 5),
    "qwen2_moe": (7, 5),
    "qwen3": (8, 5),
    "qwen3_moe": (7, 5),
    "roberta": (11, 10),
    "stablelm": (7, 5),
    "starcoder2": (6, 5),
    "vit": (8, 7),
    "xlm-roberta": (11, 10),
}


def module_calls(info: Mapping[str, Any], phase: str = "") -> float:
    """Calls of modules without weights in one pass of a workload.

    Parameters
    ----------
    info : mapping
        Of the workload: ``module_calls`` where they were counted, else ``family`` and ``num_layers``.

    phase : str
        Of the pass: a decoder's step calls no encoder (``decode_module_calls``).

    Returns
    -------
    float
        0 for families that were not counted.
    """
    if phase == "decode" and "decode_module_calls" in info:
        return float(info["decode_module_calls"])
    if "module_calls" in info:
        return float(info["module_calls"])
    layer, once = _CALLS.get(str(info.get("family", "")), (0.0, 0.0))
    return layer * float(info.get("num_layers") or 0) + once
