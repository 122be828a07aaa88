"""Workloads from files: operation lists, EnergAIzer traces, and telling files apart by content."""

from __future__ import annotations

import json
import os
import pickle
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import docs_oplist
from joulecast.errors import InputError
from joulecast.gpus import load_gpu
from joulecast.validation import baseline
from joulecast.workloads import files, oplist_schema
from joulecast.workloads.energaizer import as_precision, read_trace, workload_of_trace
from joulecast.workloads.frames import read_frame
from joulecast.workloads.kinds import ELEMENTWISE, KINDS, REDUCTIONS
from joulecast.workloads.oplist import operation_rows, read_oplist, workload_of_json, write_oplist
from joulecast.workloads.request import Request
from joulecast.workloads.sources import open_workload
from joulecast.workloads.table import Workload, WorkloadBuilder, op_table

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

BERT = "bertmodel_large_pbf16_b1_s512_modeprefill"
OPT = "optmodel_opt-1p3b_pbf16_b2_s128_modeprefill"
QWEN = "qwen2model_qwen2-1p5b_pbf16_b2_s512_modeprefill"
VIT = "vitmodel_large_pbf16_b8_freq900"
MOBILEVIT = "mobilevitmodel_small_pbf16_b8_freq900"


def one_line(error: pytest.ExceptionInfo[InputError]) -> str:
    """The message, which must be one line."""
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 500
    return text


def refusal(read: Callable[[], Workload]) -> str:
    """The message of the `InputError` that `read` raises, or nothing; any other exception passes."""
    try:
        read()
    except InputError as error:
        return str(error)
    return ""


def write(path: Path, content: Any) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def matmul_flop(workload: Workload) -> float:
    total = 0.0
    for name in ("gemm", "batched_gemm"):
        table = workload.tables[name]
        total += float((2 * table["batch"] * table["m"] * table["n"] * table["k"] * table["count"]).sum())
    return total


def every_kind() -> Workload:
    """One row of every kind, over two passes, with layers, counts and both ways to divide."""
    builder = WorkloadBuilder("all")
    builder.begin_pass("prefill", tokens=128)
    for i, one in enumerate(KINDS.values()):
        columns: dict[str, Any] = {}
        for column in one.columns:
            if column.type == "choice":
                columns[column.name] = column.choices[-1]
            elif column.type == "dtype":
                columns[column.name] = "fp16"
            elif column.type == "size":
                columns[column.name] = min(2 if column.name == "dilation" else 64 + i, column.maximum)
            else:
                columns[column.name] = min(2.5, column.maximum)
        builder.add(one.name, layer=f"layers.{i % 3}", count=i + 1, shard=("none", "out", "in")[i % 3], **columns)
    builder.begin_pass("decode", repeats=15.5, tokens=1)
    builder.add("gemm", m=1, n=4096, k=4096, dtype="fp8", layer="layers.0")
    return builder.build(
        parameters=12345.0, notes=("a note",), info={"batch": 2, "dtype": "bf16"}, unpriced={"fft": 100.0}
    )


def assert_same(left: Workload, right: Workload) -> None:
    """Equal in every table (layers as words: their codes are free), and in the passes."""
    assert left.tables.keys() == right.tables.keys()
    for name, table in left.tables.items():
        other = right.tables[name]
        assert table.columns.keys() == other.columns.keys()
        for column in table.columns:
            if column == "layer":
                assert [left.layers[i] for i in table[column]] == [right.layers[i] for i in other[column]]
            else:
                np.testing.assert_array_equal(table[column], other[column], err_msg=f"{name}.{column}")
    assert left.passes == right.passes


# --- operation list --------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["json", "csv", "parquet"])
def test_what_is_written_is_read_back(tmp_path: Path, ending: str) -> None:
    workload = every_kind()
    path = tmp_path / f"all.{ending}"
    write_oplist(workload, path)
    back = read_oplist(path)
    assert_same(workload, back)
    assert back.name == "all"
    assert [one.name for one in tmp_path.iterdir()] == [path.name], "no temporary file stays behind"
    if ending == "json":
        assert (back.parameters, back.notes, dict(back.info)) == (12345.0, ("a note",), {"batch": 2, "dtype": "bf16"})
        assert dict(back.unpriced) == {"fft": 100.0}
        assert back.memory == workload.memory


def test_the_format_is_told_by_content_and_not_by_the_ending(tmp_path: Path) -> None:
    workload = every_kind()
    for ending in ("json", "csv", "parquet"):
        write_oplist(workload, tmp_path / f"all.{ending}")
        (tmp_path / f"all.{ending}").rename(tmp_path / "list.txt")
        assert_same(workload, open_workload(tmp_path / "list.txt"))


def test_blanks_take_defaults(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.csv", b"op,m,n,k,dtype,elements,count,layer\ngemm,8,16,32,bf16,,,\ngelu,,,,bf16,128,3,mlp\n"
    )
    workload = read_oplist(path)
    assert workload.tables["gemm"]["batch"].tolist() == [1]
    assert workload.tables["gemm"]["count"].tolist() == [1]
    assert workload.tables["elementwise"].words("op") == ["gelu"]
    assert workload.tables["elementwise"].words("out_dtype") == ["bf16"]
    assert workload.passes[0].phase == "forward"
    assert workload.layers == ("", "mlp")


def test_a_linear_attention_row_lies_in_the_pass_that_its_own_phase_names() -> None:
    row = {
        "op": "linear_attention_gdn", "phase": "generation", "batch_size": 1, "d_model": 2048, "num_k_heads": 16,
        "num_v_heads": 32, "kernel_source": "causal_conv1d_update",
    }  # fmt: skip
    assert workload_of_json([row], "x").passes[0].phase == "decode"
    assert workload_of_json([{**row, "pass_phase": "forward"}], "x").passes[0].phase == "forward"


def test_words_of_reductions_and_pointwise_functions_name_one_kind_each() -> None:
    assert not set(REDUCTIONS) & set(ELEMENTWISE)
    assert not (set(REDUCTIONS) | set(ELEMENTWISE)) & (set(KINDS) - {"elementwise", "row_reduction"})
    types: dict[str, set[bool]] = {}
    for one in KINDS.values():
        for column in one.columns:
            types.setdefault(column.name, set()).add(column.type in ("size", "real"))
    assert all(len(found) == 1 for found in types.values()), "a column holds numbers in one kind, words in another"
    assert not set(oplist_schema.COMMON_COLUMNS) - {"phase"} & {name for one in KINDS.values() for name in one.names}


GEMM = {"op": "gemm", "m": 8, "n": 8, "k": 8, "dtype": "bf16"}
BAD_ROWS = [
    ({**GEMM, "m": 0}, ["row 2", "m of gemm", "1"]),
    ({**GEMM, "m": -3}, ["row 2", "m of gemm", "-3"]),
    ({**GEMM, "m": 1.5}, ["row 2", "m of gemm", "whole"]),
    ({**GEMM, "m": float("nan")}, ["row 2", "m of gemm", "nan"]),
    ({**GEMM, "m": float("inf")}, ["row 2", "m of gemm", "inf"]),
    ({**GEMM, "m": 10**400}, ["row 2"]),
    ({**GEMM, "m": 10**30}, ["row 2", "m of gemm"]),
    ({**GEMM, "m": "8"}, ["row 2", "m must be a number"]),
    ({**GEMM, "m": True}, ["row 2", "m must be a number"]),
    ({**GEMM, "m": [8]}, ["row 2", "m must be a number"]),
    ({**GEMM, "dtype": 16}, ["row 2", "dtype must be text"]),
    ({**GEMM, "dtype": "bf17"}, ["row 2", "bf17", "bf16"]),
    ({**GEMM, "op": "gem"}, ["row 2", "gem", "did you mean gemm"]),
    ({**GEMM, "op": None}, ["row 2", "op is missing"]),
    ({**GEMM, "op": "row_reduction"}, ["row 2", "softmax"]),
    ({key: value for key, value in GEMM.items() if key != "k"}, ["row 2", "needs a column k"]),
    ({**GEMM, "elements": 5}, ["row 2", "elements"]),
    ({**GEMM, "mm": 5}, ["column", "mm"]),
    ({**GEMM, "count": 0}, ["row 2", "count"]),
    ({**GEMM, "count": float("nan")}, ["row 2", "count"]),
    ({**GEMM, "count": 10**400}, ["row 2", "count"]),
    ({**GEMM, "phase": "prefil"}, ["row 2", "prefil", "prefill"]),
    ({**GEMM, "shard": "both"}, ["row 2", "both"]),
    ({**GEMM, "layer": 3}, ["row 2", "layer must be text"]),
    ("gemm", ["row 2", "object"]),
    (None, ["row 2", "object"]),
]


@pytest.mark.parametrize(("row", "words"), BAD_ROWS, ids=[str(row)[:50] for row, _ in BAD_ROWS])
def test_a_bad_row_is_named_with_its_column(tmp_path: Path, row: Any, words: list[str]) -> None:
    path = write(tmp_path / "list.json", {"joulecast": 1, "operations": [GEMM, row, GEMM]})
    with pytest.raises(InputError) as error:
        read_oplist(path)
    text = one_line(error)
    assert "list.json" in text
    for word in words:
        assert word in text


BAD_FILES = {
    "empty": (b"", "is empty"),
    "empty list": (b"[]", "no operations"),
    "no operations": (b'{"operations": []}', "no operations"),
    "operations of another type": (b'{"operations": 5}', "must be a list"),
    "another version": (b'{"joulecast": 2, "operations": []}', "version 2"),
    "unknown field": (b'{"operation": [], "joulecast": 1}', "operations"),
    "memory unit slip": (b'{"operations": [], "memory": {"weights_gb": 1}}', "weights_gb"),
    "truncated": (b'[{"op": "gemm", "m": 8', "ends too early"),
    "truncated in a word": (b'[{"op": "gem', "Unterminated string, line 1 column 9 (the file ends too early)"),
    "given twice": (b'[{"op": "gemm", "m": 8, "m": 9}]', "twice"),
    "latin-1": ('[{"op": "gemm", "layer": "é"}]'.encode("latin-1"), "UTF-8"),
    "deep": (b"[" * 200_000, "too deeply"),
    "digits": (b'[{"op": "gemm", "m": ' + b"9" * 5000 + b"}]", "too many digits"),
    "csv header twice": (b"op,m,m\ngemm,1,2\n", "twice"),
    "csv ragged": (b"op,m,n,k,dtype\ngemm,1,2\n", "row 1: 3 cells under 5 columns"),
    "csv quote": (b'op,m\n"gemm,1\n', "not valid CSV"),
    "csv word for number": (b"op,m,n,k,dtype\ngemm,8,8,8,bf16\ngemm,eight,8,8,bf16\n", "row 2: m must be a number"),
    "csv header only": (b"op,m,n,k,dtype\n", "no operations"),
    "csv without op": (b"m,n\n1,2\n", "column op"),
    "prose": (b"Dear reader,\n", "column op"),
    "parquet cut": (b"PAR1\x00\x01\x02", "parquet"),
    "trace events": (b'{"traceEvents": []}', "profiler"),
    "profiler events": (b'[{"ph": "X", "name": "kernel", "ts": 1}]', "profiler"),
    "other JSON": (b'{"a": 1}', "neither"),
    "list of numbers": (b"[1, 2]", "neither"),
    "onnx": (b"\x08\x07\x12\x07pytorch", "ONNX"),
    "gguf": (b"GGUF\x03\x00", "GGUF"),
    "safetensors": (b'\x40\x00\x00\x00\x00\x00\x00\x00{"__metadata__"', "safetensors"),
    "binary": (b"\x01\x02\x00\x03\x7fELF", "binary"),
    "utf-16": ("op,m".encode("utf-16"), "binary"),
}


@pytest.mark.parametrize(("content", "word"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_one_clear_line(tmp_path: Path, content: bytes, word: str) -> None:
    with pytest.raises(InputError) as error:
        open_workload(write(tmp_path / "some.file", content))
    assert word in one_line(error)


@pytest.mark.parametrize("read", [open_workload, load_gpu, read_frame], ids=["workload", "GPU", "table"])
def test_a_bad_file_deep_in_folders_is_told_by_its_own_name(tmp_path: Path, read: Callable[[Any], Any]) -> None:
    folder = tmp_path / ("a" * 90) / ("b" * 90)
    folder.mkdir(parents=True)
    with pytest.raises(InputError, match=r"…[a/]*b+/broken\.toml") as error:
        read(write(folder / "broken.toml", b"\x01\x02\x00 = ["))
    assert one_line(error)


@pytest.mark.parametrize("read", [open_workload, load_gpu, read_frame, baseline.read])
def test_what_is_no_ordinary_file_is_refused_at_once(tmp_path: Path, read: Callable[[Any], Any]) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening one waits for a writer
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match=r"regular file|is a folder|without a config"):
            read(path)


def test_checkpoints_are_refused_and_never_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("a pickle was executed",))

    for protocol in (2, 3, 4, 5):
        path = write(tmp_path / "model.bin", pickle.dumps(Trap(), protocol=protocol))
        with pytest.raises(InputError, match="pickle"):
            open_workload(path)
    with zipfile.ZipFile(tmp_path / "model.json", "w") as archive:
        archive.writestr("data.pkl", pickle.dumps(Trap()))
    with pytest.raises(InputError, match="zip"):
        open_workload(tmp_path / "model.json")


def test_damaged_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_oplist(every_kind(), path)
    whole = path.read_bytes()
    for end in (4, 12, len(whole) // 2, len(whole) - 1):
        with pytest.raises(InputError, match="parquet"):
            read_oplist(write(path, whole[:end]))
    pl.DataFrame({"op": ["gemm"], "m": ["8"]}).write_parquet(path)
    with pytest.raises(InputError, match="column m must hold numbers"):
        read_oplist(path)


def test_too_large_a_file_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 2**20)
    with pytest.raises(InputError, match="at most 1 MiB"):
        read_oplist(write(tmp_path / "x.json", b"[" + b" " * 2**21))


def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(InputError, match="not a regular file"):
        open_workload(tmp_path / "pipe.json")
    with pytest.raises(InputError, match="is a folder"):
        read_oplist(tmp_path)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", b"old")
    builder = WorkloadBuilder("\ud800")
    builder.add("gemm", m=1, n=1, k=1, dtype="bf16", layer="\ud800")
    with pytest.raises(InputError):
        write_oplist(builder.build(), path.with_suffix(".csv"))
    with pytest.raises(InputError, match=r"\.json, \.csv or \.parquet"):
        write_oplist(builder.build(), path.with_suffix(".xlsx"))
    with pytest.raises(InputError, match="can't write"):
        write_oplist(every_kind(), tmp_path / "none" / "x.json")
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]


@FUZZ
@given(st.binary(max_size=400) | st.binary(max_size=60).map(lambda tail: b"PAR1" + tail + b"PAR1"))
def test_any_bytes_are_read_or_refused(tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path / "fuzz", data)
    assert "\n" not in refusal(lambda: open_workload(path))


WORDS = st.sampled_from(
    ["op", "gemm", "m", "n", "k", "dtype", "bf16", "softmax", "rows", "dim", "count", "phase", "operations", "layer",
     "joulecast", "batch", "dimM", "dimN", "dimK", "precM", "prec", "elementwise", "layernorm", "conv2d", "info",
     "name"]
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers(-3, 70) | st.integers() | st.floats() | WORDS | st.text(max_size=4)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=6), max_leaves=25
)


@FUZZ
@given(VALUES)
def test_any_json_is_read_or_refused(tmp_path: Path, value: Any) -> None:
    path = write(
        tmp_path / "fuzz.json", json.dumps({"operations": value} if isinstance(value, list) else value).encode()
    )
    assert "\n" not in refusal(lambda: open_workload(path))


@FUZZ
@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys([*GEMM, "count"], SCALARS)), max_size=4))
def test_any_rows_are_read_or_refused(rows: list[dict[str, Any]]) -> None:
    assert "\n" not in refusal(lambda: workload_of_json([{**GEMM, **row} for row in rows], "fuzz"))


@FUZZ
@given(st.text(alphabet='op,mnkdtype\n"gemm12bf6.-e ', max_size=120).map(lambda tail: "op,m,n,k,dtype\n" + tail))
def test_any_csv_is_read_or_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "fuzz.csv", text.encode())
    assert "\n" not in refusal(lambda: read_oplist(path))


SIZES = st.integers(1, 2**20)
PRODUCTS = st.fixed_dictionaries(
    {"op": st.just("gemm"), "m": SIZES, "n": SIZES, "k": SIZES, "dtype": st.sampled_from(["bf16", "fp8", "fp32"])},
    optional={"count": st.integers(1, 99), "layer": st.sampled_from(["", "mlp", 'a "b", c'])},
)


@FUZZ
@given(st.lists(PRODUCTS, min_size=1, max_size=8))
def test_any_list_of_products_survives_csv(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    workload = workload_of_json(rows, "x")
    write_oplist(workload, tmp_path / "x.csv")
    assert_same(workload, read_oplist(tmp_path / "x.csv"))


# --- EnergAIzer traces -----------------------------------------------------------------------------


def trace(data_dir: Path, name: str, **options: Any) -> Workload:
    return read_trace(data_dir / "energaizer" / "traces" / f"{name}.json", **options)


@pytest.mark.parametrize(("name", "kernels"), [(BERT, 389), (OPT, 436), (QWEN, 960), (VIT, 413), (MOBILEVIT, 200)])
def test_unrestored_traces_have_the_published_number_of_kernels(data_dir: Path, name: str, kernels: int) -> None:
    assert trace(data_dir, name, restore=False).operations == kernels


def test_bert_large_flop_count_matches_the_hand_derivation(data_dir: Path) -> None:
    # 24 layers x (12 h^2 + 2 s h) multiply-adds a token, h = 1024, s = 512, and the pooler's h^2 for one token
    expected = 2 * (24 * 512 * (12 * 1024**2 + 2 * 512 * 1024) + 1024**2)
    for restore in (False, True):
        assert matmul_flop(trace(data_dir, BERT, restore=restore)) == expected


def test_qwen2_flop_count_matches_the_hand_derivation(data_dir: Path) -> None:
    # Qwen2-1.5B: 28 layers, h 1536, 2 kv heads of 128, mlp 8960; batch 2, s 512; rotary outer product 64 x 512
    linear = 1536 * (1536 + 256 + 256 + 1536) + 3 * 1536 * 8960
    expected = 2 * (28 * 1024 * (linear + 2 * 512 * 1536) + 64 * 512)
    assert matmul_flop(trace(data_dir, QWEN)) == expected


def test_matrix_parameters_match_the_published_models(data_dir: Path) -> None:
    # ViT-L/16 without position and class embeddings, norms and biases: 24 x 12 h^2 + pooler 768 h + patches 768 h
    assert trace(data_dir, VIT).parameters == 24 * 12 * 1024**2 + 2 * 768 * 1024
    # apple/mobilevit-small has 5.58 M with its classifier of 640 x 1000 + 1000: depthwise layers count once a channel
    assert trace(data_dir, MOBILEVIT).parameters == pytest.approx(5.58e6 - 641e3, rel=0.01)


def added(workload: Workload) -> Counter[str]:
    """Restored launches by kind and word."""
    return Counter(row["op"] for row in operation_rows(workload) if row["layer"].startswith("restored."))


def test_restored_launches_of_bert_are_those_of_eager_attention(data_dir: Path) -> None:
    one, two = trace(data_dir, BERT), trace(data_dir, "bertmodel_large_pbf16_b2_s128_modeprefill")
    # three look-ups, the in-place addition, two steps of the mask; a copy a layer after attention ...
    assert added(one) == {"gather": 3, "add": 1, "mask": 1, "scale": 1, "copy": 24}
    # ... and three more a layer where a batch above one keeps batched products from taking strided operands
    assert added(two)["copy"] == 4 * 24
    assert two.info["batch"] == 2


def test_restored_launches_of_qwen2_are_those_of_its_layers(data_dir: Path) -> None:
    counts = added(trace(data_dir, QWEN))
    norms, layers = 2 * 28 + 1, 28
    assert counts["mean"] == norms
    assert counts["cast"] == 2 * norms + 2  # two rotary tables
    assert counts["copy"] == layers * (2 + 2 + 1 + 1) + 1  # rotary, expansion, queries, context; the angles
    assert counts["other"] == layers * 2 + 2  # negations; cosine and sine
    assert counts["gather"] == 1


def test_restored_mobilevit_has_its_batch_norms_and_depthwise_convolutions(data_dir: Path) -> None:
    workload = trace(data_dir, MOBILEVIT)
    counts = added(workload)
    assert counts["scale"] == 35 - 3  # all but the three projections into transformers
    assert counts["mean"] == 1
    conv = workload.tables["conv2d"]
    depthwise = conv["groups"] > 1
    assert depthwise.sum() == 7  # one in each inverted residual
    assert (conv["groups"] == conv["in_channels"])[depthwise].all()
    assert sorted(conv["in_channels"][depthwise].tolist()) == [64, 128, 256, 256, 256, 384, 512]
    dense = trace(data_dir, MOBILEVIT, restore=False)
    assert (dense.tables["conv2d"]["groups"] == 1).all()


def test_every_restored_launch_is_told_in_the_notes(data_dir: Path) -> None:
    for name in (BERT, OPT, QWEN, VIT, MOBILEVIT):
        workload = trace(data_dir, name)
        told = sum(int(note.split(": ", 1)[1].split()[0]) for note in workload.notes if note.startswith("restored"))
        assert told == sum(added(workload).values()) == workload.info["restored_launches"] > 0


def test_layers_are_told_from_the_repetition(data_dir: Path) -> None:
    for name, layers in ((BERT, 24), (OPT, 24), (QWEN, 28), (VIT, 24)):
        rows = operation_rows(trace(data_dir, name))
        assert {row["layer"].removeprefix("restored.") for row in rows} <= {"embeddings", "layers.*", "head"}
        assert sum(row["op"] == "softmax" and row["layer"] == "layers.*" for row in rows) == layers
    assert "layers.*" not in trace(data_dir, MOBILEVIT).layers, "no one block makes up MobileViT"


def test_a_fp32_softmax_runs_between_its_casts(data_dir: Path) -> None:
    for name in (OPT, VIT):
        rows = operation_rows(trace(data_dir, name))
        at = next(i for i, row in enumerate(rows) if row["op"] == "softmax")
        assert [(rows[i]["dtype"], rows[i].get("out_dtype")) for i in (at - 1, at, at + 1)] == [
            ("bf16", "fp32"), ("fp32", None), ("fp32", "bf16")
        ]  # fmt: skip


def test_fp32_has_no_casts_and_the_same_arithmetic(data_dir: Path) -> None:
    workload = trace(data_dir, QWEN)
    single = as_precision(workload, "float32")
    assert matmul_flop(single) == matmul_flop(workload)
    assert added(single)["cast"] == 0
    assert "cast" not in single.tables["elementwise"].words("op")
    assert {word for table in single.tables.values() for word in table.words("dtype")} == {"fp32"}
    assert set(as_precision(trace(data_dir, VIT), "fp32").tables["conv2d"].words("dtype")) == {"tf32"}
    with pytest.raises(InputError, match="fp8"):
        as_precision(workload, "fp8")


def test_a_trace_is_opened_by_content_and_in_another_precision(data_dir: Path) -> None:
    path = data_dir / "energaizer" / "traces" / f"{VIT}.json"
    assert_same(open_workload(path), trace(data_dir, VIT))
    assert_same(open_workload(str(path), dtype="fp32"), as_precision(trace(data_dir, VIT), "fp32"))
    with pytest.raises(InputError, match="batch"):
        open_workload(path, batch=4)


def test_a_trace_survives_an_operation_list(data_dir: Path, tmp_path: Path) -> None:
    workload = trace(data_dir, MOBILEVIT)
    write_oplist(workload, tmp_path / "x.json")
    assert_same(workload, open_workload(tmp_path / "x.json"))


def kernel(tags: list[str], **fields: Any) -> list[Any]:
    return [fields, tags]


def product(m: int, n: int, k: int, batch: int = 1) -> list[Any]:
    sizes = {"batch": batch, "dimM": m, "dimN": n, "dimK": k}
    return kernel(["gemm", "tc", "bf16_bf16"], **sizes, precM="bf16", precA="bf16", useTensorCore=True)


def norm(rows: int, dim: int) -> list[Any]:
    return kernel(["layernorm", "bf16"], batch=rows, dim=dim, prec="bf16")


def test_linear_layers_of_gpt2_have_tokens_first() -> None:
    # Conv1D logs M = tokens, N = out features; nn.Linear M = out features, N = tokens
    as_linear = workload_of_trace([norm(64, 768), product(2304, 64, 768)], "x", restore=False).tables["gemm"]
    as_conv1d = workload_of_trace([norm(64, 768), product(64, 2304, 768)], "x", restore=False).tables["gemm"]
    for table in (as_linear, as_conv1d):
        assert (table["m"][0], table["n"][0], table["k"][0]) == (64, 2304, 768)


def test_grouped_convolutions_keep_their_groups() -> None:
    conv = {
        "batch": 1, "dimM": 2 * 56 * 56, "dimN": 64, "dimK": 2 * 9, "precM": "bf16", "precA": "bf16",
        "useTensorCore": True, "b": 2, "m": 64, "c": 64, "hw": 56, "rs": 3, "stride": 1, "padding": 1,
    }  # fmt: skip
    table = workload_of_trace([[conv, ["conv2d", "tc", "bf16_bf16"]]], "x").tables["conv2d"]
    assert table["groups"].tolist() == [32]


BAD_KERNELS = [
    (product(0, 8, 8), "dimM"),
    (product(-8, 8, 8), "dimM"),
    (product(8, 10**30, 8), "dimN"),
    (kernel(["gemm"], batch=1, dimM=8, dimN=8, dimK=8), "precM"),
    (kernel(["gemm"], batch=1, dimM=8, dimN=8, dimK=8, precM="bf17"), "bf16"),
    (kernel(["gemm"], batch=1, dimM=8.5, dimN=8, dimK=8, precM="bf16"), "dimM"),
    (kernel(["gemm"], batch=True, dimM=8, dimN=8, dimK=8, precM="bf16"), "batch"),
    (kernel(["gemn"], batch=1), "gemm"),
    (kernel([], dim=1), "tag"),
    (kernel(["elementwise"], dim=8, op="gelo", prec="bf16"), "gelu"),
    (kernel(["elementwise"], dim=8, op="gelu", prec="bf16", fusion=True), "fusion"),
    (kernel(["softmax", "bf16"], batch=8, prec="bf16"), "dim"),
    ([{"dim": 8}], "descriptor"),
    (None, "descriptor"),
]


@pytest.mark.parametrize(("row", "word"), BAD_KERNELS, ids=[str(row)[:60] for row, _ in BAD_KERNELS])
def test_a_bad_kernel_is_named_by_row_and_field(tmp_path: Path, row: Any, word: str) -> None:
    path = write(tmp_path / "trace.json", [norm(8, 8), row])
    with pytest.raises(InputError) as error:
        open_workload(path)
    text = one_line(error)
    assert "row 2" in text
    assert word in text


KERNELS = st.one_of(
    st.builds(product, *[st.sampled_from([1, 4, 64, 128])] * 3, st.sampled_from([1, 1, 4, 8])),
    st.builds(norm, st.sampled_from([4, 64]), st.sampled_from([64, 128])),
    st.builds(
        lambda rows, dim, prec: kernel(["softmax", prec], batch=rows, dim=dim, prec=prec),
        st.sampled_from([4, 64]), st.sampled_from([64, 128]), st.sampled_from(["bf16", "fp32"]),
    ),
    st.builds(
        lambda dim, op, prec: kernel(["elementwise"], dim=dim, op=op, prec=prec),
        st.sampled_from([1, 4, 64, 256, 4096]),
        st.sampled_from(["pointwise_add", "pointwise_mul", "scalar_add", "scalar_mul", "unspecified_scalar",
                         "typecast_to_fp32", "typecast_to_bf16", "tanh"]),
        st.sampled_from(["bf16", "fp32"]),
    ),
    st.builds(
        lambda b, m, c, hw, rs: kernel(
            ["conv2d", "tc", "bf16_bf16"], batch=1, dimM=b * hw * hw, dimN=m, dimK=c * rs * rs, precM="bf16",
            precA="bf16", useTensorCore=True, b=b, m=m, c=c, hw=hw, rs=rs, stride=1, padding=rs // 2),
        st.sampled_from([1, 4]), st.sampled_from([4, 8, 16]), st.sampled_from([4, 8, 16]), st.sampled_from([4, 8]),
        st.sampled_from([1, 3]),
    ),
)  # fmt: skip


@FUZZ
@given(st.lists(KERNELS, min_size=1, max_size=30))
def test_restoring_only_ever_adds(rows: list[Any]) -> None:
    plain, full = workload_of_trace(rows, "x", restore=False), workload_of_trace(rows, "x")
    assert plain.operations == len(rows)
    assert full.operations == len(rows) + sum(added(full).values())
    if "gemm" in plain.tables:
        np.testing.assert_array_equal(plain.tables["gemm"]["n"], full.tables["gemm"]["n"])


# --- one door --------------------------------------------------------------------------------------


def test_what_is_not_there_is_a_missing_file_only_if_it_looks_like_one(tmp_path: Path) -> None:
    for missing in ("./model", "/nowhere/model", "model.json", "x/config.json", tmp_path / "model", "a.onnx"):
        with pytest.raises(InputError, match="no such file"):
            open_workload(missing)


def test_sources_of_no_use_are_refused(tmp_path: Path) -> None:
    for source in ("", "  ", 5, None, b"x"):
        with pytest.raises(InputError):
            open_workload(source)
    with pytest.raises(InputError, match=r"without a config\.json"):
        open_workload(tmp_path)
    for odd in ("a\x00b.json", "x" * 5000 + ".json"):
        with pytest.raises(InputError):
            open_workload(odd)


def test_fixed_shapes_take_no_options(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", [GEMM])
    assert open_workload(path).operations == 1
    for source in (path, [GEMM], open_workload(path)):
        with pytest.raises(InputError, match="prompt_tokens can't be asked"):
            open_workload(source, prompt_tokens=128)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What reaches the model catalogue and the reader of configs, put in their place."""
    calls: list[tuple[Any, ...]] = []
    for module, function in (("catalogue", "from_name"), ("huggingface", "from_config")):
        stand_in = ModuleType(module)
        setattr(stand_in, function, lambda *given, function=function: calls.append((function, *given)))
        monkeypatch.setitem(sys.modules, f"joulecast.workloads.{module}", stand_in)
    return calls


def test_a_name_goes_to_the_catalogue_whatever_its_dots_and_slashes(asked: list[tuple[Any, ...]]) -> None:
    for name in ("meta-llama/Llama-3.1-8B", "gpt2", "Qwen/Qwen2.5-0.5B"):
        open_workload(name, batch=3)
        function, given, request = asked.pop()
        assert (function, given, request.batch) == ("from_name", name, 3)


def test_a_config_is_known_by_content_as_file_folder_and_mapping(tmp_path: Path, asked: list[tuple[Any, ...]]) -> None:
    config = {"model_type": "bert", "hidden_size": 768}
    (tmp_path / "my-bert").mkdir()
    write(tmp_path / "my-bert" / "config.json", config)
    write(tmp_path / "other.txt", config)
    request = Request(batch=2, prompt_tokens=64)
    for source in (tmp_path / "my-bert", str(tmp_path / "my-bert" / "config.json")):
        open_workload(source, request)
        assert asked.pop() == ("from_config", config, request, "my-bert")
    open_workload(tmp_path / "other.txt", request)
    assert asked.pop() == ("from_config", config, request, "other")
    open_workload(config, request)
    assert asked.pop()[:3] == ("from_config", config, request)


def test_parsed_lists_and_workloads_are_taken_too() -> None:
    workload = open_workload([GEMM])
    assert workload.tables["gemm"]["m"].tolist() == [8]
    assert open_workload(workload) is workload


# --- docs ------------------------------------------------------------------------------------------


def test_the_docs_list_every_column() -> None:
    assert docs_oplist.shown(docs_oplist.PAGE.read_text(encoding="utf-8")) == docs_oplist.reference(), (
        "docs/operation-list.md is out of date: python tests/docs_oplist.py --write"
    )


def test_the_example_in_the_docs_is_the_file() -> None:
    example = (docs_oplist.PAGE.parent / "examples" / "mlp.csv").read_text(encoding="utf-8")
    assert f"```csv\n{example}```" in docs_oplist.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"op": "context_attention", "num_heads": 8, "num_kv_heads": 16}, "num_heads must be a multiple of num_kv"),
        ({"op": "generation_attention", "num_heads": 8, "num_kv_heads": 3}, "got num_heads 8, num_kv_heads 3"),
        ({"op": "moe", "topk": 9, "num_experts": 8}, "topk must not exceed num_experts"),
        ({"op": "conv2d", "height": 4, "padding": 1, "kernel_h": 7}, "the filter's rows must fit into the padded"),
        ({"op": "conv2d", "height": 14, "width": 2, "kernel_h": 3}, "the filter's columns must fit"),
        ({"op": "conv2d", "in_channels": 6, "groups": 4, "kernel_h": 3}, "in_channels must be a multiple of groups"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused_with_their_row(tmp_path, row, text):
    needed = {
        column.name: "fp16" if column.type == "dtype" else 8
        for column in KINDS[row["op"]].columns
        if column.default is None
    }
    fine = {"op": "gemm", "m": 1, "n": 1, "k": 1, "dtype": "fp16"}
    path = write(tmp_path / "ops.json", {"operations": [fine, {**needed, **row}]})
    with pytest.raises(InputError, match=rf"row 2: {row['op']}: .*{text}"):
        read_oplist(path)


def test_a_filter_as_large_as_the_padded_input_is_one_output():
    table = op_table("conv2d", {"batch_size": 1, "in_channels": 3, "out_channels": 8, "height": 5, "padding": 1,
                                "kernel_h": 4, "dilation": 2, "dtype": "fp16"})  # fmt: skip
    assert len(table) == 1
