"""Which model types of the installed transformers build without weights and can be recorded: the share, and why not.

    python benchmarks/transformers_coverage.py --slice 0/8 --output coverage.0.jsonl
    python benchmarks/transformers_coverage.py --summary coverage.*.jsonl [--write]

Each type is taken at its default config, and where that can't be run at one of four layers with what the default
leaves open filled in. A type counts if its model is built and run on inputs made for it, and its operations can be
priced for a GPU. Backbones and other parts of models that can't be run by themselves count like all others.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import math
import re
import signal
import sys
import time
import traceback
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

#: Tables of transformers for types that are neither text, vision, audio nor both of them.
_ELSEWHERE = ("TIME_SERIES", "DECISION")
_SERIES = frozenset({"autoformer", "informer", "time_series_transformer", "graphormer", "trajectory_transformer"})

#: Of what kind the last layer of a small hybrid model is, where its default has layers without attention only.
_HYBRID = {"mamba": "attention", "linear_attention": "full_attention"}
#: Layers of a small config: enough for feature maps of four stages.
_KEPT = 4
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "encoder_layers", "decoder_layers", "n_layers",
           "encoder_num_layers", "decoder_num_layers", "num_encoder_layers", "num_decoder_layers", "depth")  # fmt: skip


def _strips() -> dict[str, list[Any]]:
    """Kernels, strides and paddings of convolutions along rows, along columns and along both, of 7, 5 and 3."""
    made: dict[str, list[Any]] = {"reduce_channel": [1, 1, 0], "return_channel": [1, 1, 0]}
    for place, size in (("long", 7), ("mid", 5), ("short", 3)):
        half = size // 2
        made[f"vertical_long_to_small_conv_{place}ratio"] = [[size, 1], [1, 1], [half, 0]]
        made[f"horizontal_small_to_long_conv_{place}ratio"] = [[1, size], [1, 1], [0, half]]
        made[f"symmetric_conv_long_{place}ratio"] = [[size, size], [1, 1], [half, half]]
    return made


#: Sizes that some default configs leave open.
_OPEN = {"vocab_size": 99, "pad_token_id": 0, "num_experts_per_tok": 2, "n_routed_experts": 8, "n_shared_experts": 1,
         "sliding_window": 128, "num_local_experts": 8, "num_experts": 8, "moe_intermediate_size": 256,
         "shared_expert_intermediate_size": 256, "num_key_value_heads": 4, "hidden_size_per_layer_input": 64,
         "class_thresholds": [0.5] * 25, "vocabulary_map": {"<image>": 7, "<|extra_200|>": 8},
         "downsample_channels": [512, 1024], "class_order": list(range(25)), "kernel_list": [3, 2, 2],
         "scale_factor_list": [1, 2, 4, 8], "downsample_rate": "4/8", "deepstack_layer_map": [(-1, 0), (-2, 1)],
         "video_token_id": 8, "top_k_experts": 2, "clip_qkv": 8.0, "dropout_rate": 0.0, "indexer_n_heads": 4,
         "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 64, "indexer_compress_ratio": 4,
         "expert_intermediate_size": 256, "backbone": "resnet50",
         "intraclass_block_config": _strips()}  # fmt: skip

#: Thresholds under which a model stops early, by what its data say: below none, all layers are run.
_EARLY = ("depth_confidence", "width_confidence")
#: What a default config says that its own validation refuses.
_REFUSED = re.compile(r"(\w+) must be (\w+), got")


def model_types() -> list[str]:
    """Types of text, vision, audio and multimodal models, in alphabetical order."""
    from transformers.models.auto import modeling_auto as auto

    tables = {name: getattr(auto, name) for name in dir(auto) if name.endswith("_MAPPING_NAMES")}
    tables.pop("CONFIG_MAPPING_NAMES", None)
    elsewhere = {kind for name, table in tables.items() if any(one in name for one in _ELSEWHERE) for kind in table}
    return sorted({kind for table in tables.values() for kind in table} - elsewhere - _SERIES)


def configs(model_type: str) -> list[Any]:
    """The default config of a type, a small one (four layers), and one with the backbone that its class declares.

    What they leave open is filled in.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    made = []
    for start, prepare in ((_default, _fed), (_default, _cut), (_declared, _filled)):
        try:
            config = start(CONFIG_MAPPING[model_type])
            prepare(config)
        except Exception:
            continue
        made.append(config)
    return made or [CONFIG_MAPPING[model_type]()]


def _declared(cls: Any) -> Any:
    """The config of a class with the backbone that its declaration names, which its defaults pass over for another."""
    spec = getattr(cls, "sub_configs_defaults", {}).get("backbone_config")
    if spec is None:
        raise LookupError(f"{cls.__name__} declares no backbone")
    backbone = spec.get_config_class(spec.model_type)
    return cls(backbone_config=backbone(**spec.init_kwargs))


def _default(cls: Any, tries: int = 6) -> Any:
    """The default config of a class, or where that is refused, one whose text part has what was asked for instead."""
    specs = getattr(cls, "sub_configs_defaults", {})
    given: dict[str, Any] = {}
    for _ in range(tries):
        try:
            return cls(**({"text_config": given} if given else {}))
        except Exception as error:
            found = _REFUSED.search(str(error))
            if found is None or "text_config" not in specs:
                raise
            kind = getattr(specs["text_config"], "model_type", None)
            given = {"model_type": kind, **given, found[1]: ast.literal_eval(found[2])}
    return cls()


def _open(config: Any, name: str) -> bool:
    """Whether a config has an entry and leaves it open; an entry that differs from layer to layer is not."""
    try:
        return getattr(config, name, 0) is None
    except Exception:
        return False


def _filled(config: Any) -> None:
    """Give sizes that a default config leaves open."""
    from joulecast.workloads.transformers_configs import parts
    from joulecast.workloads.transformers_layouts import attribute

    for one in parts(config):
        sizes = (attribute(one, "num_attention_heads"), attribute(one, "hidden_size"))
        heads, hidden = sizes if all(isinstance(size, int) for size in sizes) else (None, None)
        if _open(one, "head_dim") and heads and hidden:
            one.head_dim = hidden // heads if hidden % heads == 0 else 128
        if _open(one, "num_key_value_heads") and heads:
            one.num_key_value_heads = heads
        if heads and hidden and hidden % heads and not hasattr(one, "head_dim"):
            groups = attribute(one, "num_key_value_heads") or 1
            whole = (count for count in range(heads, 0, -1) if hidden % count == 0 and count % groups == 0)
            one.num_attention_heads = heads = next(whole, heads)
        rope = getattr(one, "rope_parameters", None)
        if not rope and "rope_parameters" in vars(one) and isinstance(getattr(one, "layer_types", None), list):
            one.rope_parameters = {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in set(one.layer_types)}
        mixed = any(word in str(getattr(one, "model_type", "")) for word in ("glm", "vl_text", "hunyuan"))
        if isinstance(rope, dict) and (mixed or "mrope_section" in rope) and heads and hidden:
            turned = int((attribute(one, "head_dim") or hidden // heads) * rope.get("partial_rotary_factor", 1))
            half = (turned + 1) // 2
            rope["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]
        if getattr(one, "languages", None) and getattr(one, "default_language", "") is None:
            one.default_language = one.languages[0]
        layers = getattr(one, "num_hidden_layers", None)
        if "layer_types" in vars(one) and one.layer_types is None and isinstance(layers, int):
            one.layer_types = ["full_attention"] * layers
        if "mlp_layer_types" in vars(one) and one.mlp_layer_types is None and isinstance(layers, int):
            one.mlp_layer_types = ["dense"] + ["sparse"] * (layers - 1)
        for name in _EARLY:
            if isinstance(getattr(one, name, None), float):
                setattr(one, name, -1.0)
        if vars(one).get("projector_scale_factors") in ([], ()):
            one.projector_scale_factors, one.num_feature_levels = [1.0], 1
            one.projector_in_channels = [one.d_model]
        ratio = getattr(one, "pixel_shuffle_ratio", None)
        if ratio and hidden and hasattr(one, "projector_input_dim"):
            one.intermediate_size = int(hidden / ratio**2)
        for name, value in _OPEN.items():
            if (name in vars(one) or name in type(one).attribute_map) and _open(one, name):
                setattr(one, name, value)
    _joined(config)
    for name, value in (("image_token_id", 7), ("image_token_index", 7), ("prediction_length", 24)):
        if hasattr(config, name) and getattr(config, name) is None:
            setattr(config, name, value)


def _fed(config: Any) -> None:
    """Give backbones that hand on maps of several stages and need no further library, and what is left open."""
    from transformers import ResNetConfig

    from joulecast.workloads.transformers_configs import parts

    timm = importlib.util.find_spec("timm") is not None
    for one in parts(config):
        backbone = getattr(one, "backbone_config", None)
        stages = getattr(backbone, "stage_names", None)
        count = len(getattr(backbone, "stage_configs", None) or range(4))
        if stages and len(getattr(backbone, "out_features", None) or []) < 2 and len(stages) > count:
            backbone.reshape_hidden_states = False
            backbone.out_features = list(stages[-count:])
        if hasattr(backbone, "archirecture"):  # as a default of transformers spells it
            backbone.architecture = backbone.archirecture
        if not timm and "timm" in str(getattr(backbone, "model_type", "")):
            one.backbone_config = ResNetConfig(out_features=["stage2", "stage3", "stage4"])
    _filled(config)


def _joined(config: Any) -> None:
    """Give parts that hand their results on the width of what takes them, where their defaults are another's."""
    from joulecast.workloads.transformers_layouts import attribute

    text = getattr(config, "text_config", None)
    taken = {("vision_config", "out_hidden_size"), ("audio_config", "output_dim")}
    if hasattr(getattr(config, "vision_config", None), "embed_dim"):  # its own width stands apart
        taken.add(("vision_config", "hidden_size"))
    for name, key in taken:
        giver = getattr(config, name, None)
        if isinstance(getattr(giver, key, None), int) and isinstance(attribute(text, "hidden_size"), int):
            setattr(giver, key, text.hidden_size)
    for one in vars(config).values():
        if hasattr(one, "vision_output_dim") and hasattr(one, "projector_output_dim"):
            one.vision_output_dim = one.projector_output_dim
        if hasattr(one, "model_type"):
            _joined(one)
    if isinstance(getattr(config, "downsample_factor", None), int) and hasattr(config, "vision_config"):
        pooled = config.vision_config.patch_size * config.downsample_factor
        config.vision_config.image_size -= config.vision_config.image_size % pooled
    vision = getattr(config, "vision_config", None)
    if isinstance(getattr(config, "mm_tokens_per_image", None), int) and vision is not None:
        vision.image_size = 2 * math.isqrt(config.mm_tokens_per_image) * vision.patch_size
    if getattr(config, "projector_patch_to_query_dict", None):
        patches = min(int(count) for count in config.projector_patch_to_query_dict)
        vision.image_size = math.isqrt(patches) * vision.patch_size
    if hasattr(config, "projector_config") and hasattr(getattr(config, "encoder_config", None), "hidden_dim"):
        config.projector_config.encoder_hidden_size = config.encoder_config.hidden_dim
    backbone = getattr(config, "backbone_config", None)
    if hasattr(config, "layer_list_out_channels"):
        config.layer_list_out_channels = _channels(backbone)
    if hasattr(config, "projector_pooling_ratio") and getattr(config.vision_config, "model_args", 0) is None:
        config.vision_config.architecture = "vit_pe_core_large_patch14_336"  # that of the type's checkpoints
        config.vision_config.model_args = {"embed_dim": 1024}
    if hasattr(config, "convstream_hidden_sizes"):
        config.hidden_size = _channels(backbone)[-1]


def _channels(backbone: Any) -> list[int]:
    """Channels of the maps that a backbone hands on."""
    import torch
    from transformers import AutoBackbone

    with torch.device("meta"):
        return list(AutoBackbone.from_config(backbone).channels)


def _cut(config: Any) -> None:
    from joulecast.workloads.transformers_configs import parts

    _fed(config)
    for one in parts(config):
        for name in _LAYERS:
            if isinstance(getattr(one, name, None), int) and getattr(one, name) > _KEPT:
                setattr(one, name, _KEPT)
        for name in ("layer_types", "mlp_layer_types", "layers_block_type"):
            kinds = getattr(one, name, None)
            if isinstance(kinds, list) and len(kinds) > _KEPT:
                others = [kind for kind in kinds if kind != kinds[0]][:1]
                setattr(one, name, [*kinds[: _KEPT - len(others)], *others])
            if isinstance(kinds, list) and set(kinds) in ({"mamba"}, {"linear_attention"}):
                setattr(one, name, [*getattr(one, name)[:-1], _HYBRID[kinds[0]]])


def examine(model_type: str, seconds: int) -> dict[str, Any]:
    """What comes of one type."""
    start = time.perf_counter()
    found: dict[str, Any] = {"type": model_type, "stage": "build", "error": ""}
    signal.signal(signal.SIGPROF, _stop)
    try:
        for config in configs(model_type):
            signal.setitimer(signal.ITIMER_PROF, seconds)
            try:
                one = _examined(model_type, config)
            except _TooLong:  # a smaller config may be run in time
                one = {"type": model_type, "stage": "trace", "error": f"not done in {seconds} s"}
            if not found["error"] or one["stage"] in ("trace", "done"):
                found = one
            if one["stage"] == "done":
                break
    except _TooLong:
        found["error"] = found["error"] or f"not done in {seconds} s"
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"[:300]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    found["seconds"] = round(time.perf_counter() - start, 2)
    return found


class _TooLong(BaseException):
    """The time for one type is over; no handler of the tries in between may take it for a refusal."""


def _stop(*_: Any) -> None:
    raise _TooLong


def _examined(model_type: str, config: Any) -> dict[str, Any]:
    import torch

    from joulecast import predict
    from joulecast.workloads.request import Request
    from joulecast.workloads.transformers_models import build_model, offline, with_lists
    from joulecast.workloads.transformers_run import traced

    found: dict[str, Any] = {"type": model_type, "stage": "build"}
    try:
        with offline():
            model = _built(with_lists(config), torch.bfloat16, build_model)
            found |= {"class": type(model).__name__, "stage": "trace"}
            workload = traced(config, Request(prompt_tokens=32), model_type, model)
        found["stage"] = "predict"
        prediction = predict(workload, "h100", ignore_memory=True)
        found |= {
            "stage": "done", "operations": workload.operations, "unpriced": dict(prediction.unpriced),
            "flop": workload.flop("matmul"), "notes": list(workload.notes),
        }  # fmt: skip
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"[:300]
        cause = error.__cause__ or error.__context__ or error
        frame = traceback.extract_tb(cause.__traceback__)
        found["where"] = f"{Path(frame[-1].filename).name}:{frame[-1].lineno}" if frame else ""
    return found


def _built(config: Any, dtype: Any, build: Any) -> Any:
    """The model of a config, which is given the sizes in `_OPEN` for which it asks in vain."""
    from joulecast.workloads.transformers_configs import parts

    for _ in range(len(_OPEN)):
        try:
            return build(config, dtype)
        except Exception as error:
            found = re.search(r"'(\w+)' object has no attribute '(\w+)'", str(error))
            owners = [one for one in parts(config) if found and type(one).__name__ == found[1]]
            if found is None or found[2] not in _OPEN or all(hasattr(one, found[2]) for one in owners):
                raise
            for one in owners:
                setattr(one, found[2], _OPEN[found[2]])
    return build(config, dtype)


def summary(paths: list[str], write: bool = False) -> int:
    """Print the share of types that were recorded, and the others with their reasons."""
    rows = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
    rows = [row for row in {row["type"]: row for row in rows}.values() if row["type"] not in _SERIES]
    done = [row for row in rows if row["stage"] == "done"]
    whole = [row for row in done if not any("on text alone" in note for note in row["notes"])]
    print(f"{len(done)} of {len(rows)} types recorded and priced: {100 * len(done) / max(len(rows), 1):.1f} %")
    built = [row for row in rows if row["stage"] != "build"]
    print(
        f"  of the {len(built)} whose default or small config builds here: {100 * len(done) / max(len(built), 1):.1f} %"
    )
    print(f"  with all that they take {len(whole)}, on text alone {len(done) - len(whole)}")
    unpriced = [(row["type"], name, share) for row in done for name, share in row["unpriced"].items() if share > 0.02]
    print(f"  operators left unpriced above 2 % of bytes: {unpriced or 'none'}")
    print(f"  not recorded, by stage: {dict(Counter(row['stage'] for row in rows if row['stage'] != 'done'))}")
    for row in sorted(rows, key=lambda one: one["type"]):
        if row["stage"] != "done":
            print(f"{row['type']:40s} {row['stage']:8s} {row.get('error', '')[:150]}")
    if write:
        write_page(rows)
    return 0


#: Where the list of failures stands, and what it stands between.
PAGE = Path(__file__).resolve().parents[1] / "docs" / "pytorch.md"
_MARKS = ("<!-- types that can't be recorded -->", "<!-- end of types -->")
_LIBRARY = re.compile(r"requires the (\w+) library")
_PLAIN = re.compile(r"^(?:InputError: )?(?:(?:building|running) \w+(?: on inputs made for it)? failed: )?")


def reasons(rows: list[dict[str, Any]]) -> str:
    """A list of the types that were not recorded, by what they lack, as the documentation has it."""
    failed = sorted((row for row in rows if row["stage"] != "done"), key=lambda row: row["type"])
    libraries: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {"build": [], "trace": [], "predict": []}
    for row in failed:
        found = _LIBRARY.search(row.get("error", ""))
        if found:
            libraries.setdefault(found[1], []).append(row["type"])
            continue
        text = " ".join(_PLAIN.sub("", row.get("error", "")).split())
        others[row["stage"]].append(f"| `{row['type']}` | {_cell(text)} |")
    done = len(rows) - len(failed)
    whole = len(model_types())
    gone = "" if len(rows) >= whole else f" gone through so far, of {whole:,},"
    text = sum(any("on text alone" in note for note in row.get("notes", ())) for row in rows)
    lines = [f"{done} of {len(rows)} types{gone} of text, vision, audio and multimodal models are built, recorded and "
             f"priced ({100 * done / len(rows):.1f} %), {text} of them on text alone: {_versions()}."]  # fmt: skip
    if libraries:
        named = "; ".join(f"{name}: {', '.join(f'`{one}`' for one in types)}" for name, types in libraries.items())
        lines += ["", f"Can't be built without a further library: {named}."]
    for stage, what in (("build", "can't be built at their defaults"), ("trace", "refuse the inputs made for them"),
                        ("predict", "can't be priced")):  # fmt: skip
        if others[stage]:
            lines += ["", f"| {what} | PyTorch's or transformers' words |", "|---|---|", *others[stage]]
    return "\n".join(lines)


def _versions() -> str:
    """Versions of what the types are built with: they decide which ones can be."""
    found = []
    for name in ("transformers", "torch", "timm", "torchaudio"):
        try:
            found.append(f"{name} {metadata.version(name).partition('+')[0]}")
        except metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def _cell(text: str, limit: int = 110) -> str:
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return short.replace("|", "\\|").replace("<", "&lt;")


def write_page(rows: list[dict[str, Any]]) -> None:
    """Put the list into the documentation."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(_MARKS[0])
    _, after = rest.split(_MARKS[1])
    PAGE.write_text(f"{before}{_MARKS[0]}\n\n{reasons(rows)}\n\n{_MARKS[1]}{after}", encoding="utf-8")


def main() -> int:
    """Examine a slice of the types, or sum up what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--slice", default="0/1", help="which part: 0/8 is the first of eight")
    parser.add_argument("--types", default="", help="only these, apart by commas")
    parser.add_argument("--seconds", type=int, default=60, help="of processor time at most for one config")
    parser.add_argument("--output", default="", help="a file of JSON lines; types in it are not examined again")
    parser.add_argument("--again", action="store_true", help="examine again what failed")
    parser.add_argument("--summary", nargs="*", help="files to sum up")
    parser.add_argument("--write", action="store_true", help="with --summary: put the list into the documentation")
    given = parser.parse_args()
    if given.summary is not None:
        return summary(given.summary, given.write)
    part, parts = (int(one) for one in given.slice.split("/"))
    types = given.types.split(",") if given.types else model_types()[part::parts]
    known = set()
    if given.output and Path(given.output).exists():
        rows = [json.loads(line) for line in Path(given.output).read_text().splitlines()]
        known = {row["type"] for row in rows if row["stage"] == "done" or not given.again}
    for model_type in types:
        if model_type in known:
            continue
        line = json.dumps(examine(model_type, given.seconds))
        print(line, flush=True)
        if given.output:
            with Path(given.output).open("a") as file:
                file.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
