"""Profiler traces: what is read of them, and where their joules go."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import sqlite3
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import joulecast as jc
from joulecast.cli import main
from joulecast.errors import InputError
from joulecast.gpus import load_gpu
from joulecast.reports.flame import svg
from joulecast.traces.account import account
from joulecast.traces.attribution import attribute, attributed, basis_shares, recognised_share
from joulecast.traces.names import parsed, short_name
from joulecast.traces.power_log import read_power_log
from joulecast.traces.read import read_profile
from joulecast.traces.reconcile import reconcile
from joulecast.traces.stacks import stacks
from joulecast.traces.times import slowed, time_errors
from joulecast.workloads.aten_shapes import rows_of
from joulecast.workloads.profile import Signature
from joulecast.workloads.trace_stream import EventStream

GEMM = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)"
)


def event(cat: str, name: str, ts: float, dur: float, tid: Any = 1, pid: Any = 9, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": pid, "tid": tid, "args": args}


def op(name: str, ts: float, dur: float, dims: Any = None, types: Any = None, **args: Any) -> dict[str, Any]:
    shapes = {"Input Dims": dims, "Input type": types} if dims is not None else {}
    return event("cpu_op", name, ts, dur, **shapes, **args)


def kernel(name: str, ts: float, dur: float, correlation: int, stream: int = 7, **args: Any) -> dict[str, Any]:
    grid = {"grid": [108, 1, 1], "block": [128, 1, 1], "device": 0, "stream": stream, "correlation": correlation}
    return event("kernel", name, ts, dur, tid=stream, pid=0, **{**grid, **args})


def launch(ts: float, correlation: int, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    return event("cuda_runtime", name, ts, 5, correlation=correlation)


def training_events() -> list[dict[str, Any]]:
    """Two steps: a matrix product of a known shape, an addition beside it on another stream, a copy to the host."""
    out = []
    for step, at in enumerate((0.0, 10_000.0)):
        c = 10 * step
        out += [
            event("user_annotation", f"ProfilerStep#{step + 3}", at, 9_000),
            event("user_annotation", "## encoder ##", at + 50, 800),
            op("aten::linear", at + 100, 300, [[4096, 4096], [4096, 4096]], ["c10::Half", "c10::Half"]),
            op("aten::mm", at + 110, 100, [[4096, 4096], [4096, 4096]], ["c10::Half", "c10::Half"]),
            launch(at + 120, c + 1),
            kernel(GEMM, at + 300, 600, c + 1),
            op("aten::add", at + 450, 50, [[2**22], [2**22], []], ["float", "float", "Scalar"]),
            launch(at + 460, c + 2),
            kernel(ADD, at + 500, 100, c + 2, stream=8, grid=[8192, 1, 1]),
            launch(at + 1000, c + 3, "cudaMemcpyAsync"),
            event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", at + 2_000, 100, tid=7, pid=0,
                  device=0, stream=7, correlation=c + 3, bytes=1_000_000),
        ]  # fmt: skip
    return out


def trace(events: list[dict[str, Any]], **header: Any) -> dict[str, Any]:
    device = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108, "totalGlobalMem": 85e9,
              "computeMajor": 8, "computeMinor": 0}  # fmt: skip
    return {"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events, **header}


def written(path: Path, value: Any) -> Path:
    text = value if isinstance(value, str) else json.dumps(value)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("traces") / "train.json", trace(training_events()))


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["one.json", "one.json.gz"])
def test_plain_and_compressed_traces_read_alike(tmp_path: Path, name: str) -> None:
    profile = read_profile(written(tmp_path / name, trace(training_events())))
    assert len(profile.activities) == 6
    assert profile.activities.time_s.sum() == pytest.approx(2 * 800e-6)
    assert profile.devices[0].sm_count == 108


def test_a_bare_list_of_events_is_a_trace_too(tmp_path: Path) -> None:
    assert len(read_profile(written(tmp_path / "list.json", training_events())).activities) == 6


def test_launches_find_the_innermost_operator_that_started_them(training: Path) -> None:
    profile = read_profile(training)
    started = [profile.names[profile.operators.name[row]] for row in profile.activities.operator]
    assert started[:3] == ["aten::mm", "aten::add", "ProfilerStep#3"]


def test_ranges_whose_ends_were_rounded_apart_still_lie_within_each_other(tmp_path: Path) -> None:
    # 10.9 to 20.8 within 10.2 to 20.9: begin 10 and length 9 within begin 10 and length 10, or 10 + 11 within 10 + 10
    events = [op("aten::linear", 10, 10), op("aten::mm", 10, 11), op("aten::add", 21, 30), launch(12, 1),
              kernel(GEMM, 40, 5, 1)]  # fmt: skip
    profile = read_profile(written(tmp_path / "t.json", trace(events)))
    assert profile.operators.parent.tolist() == [-1, 0, -1]
    assert [profile.names[code] for code in profile.operators.name] == ["aten::linear", "aten::mm", "aten::add"]
    assert profile.names[profile.operators.name[profile.activities.operator[0]]] == "aten::mm"


def test_without_runtime_calls_the_external_id_links_a_kernel_to_its_operator(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 10, [[8, 8], [8, 8]], ["float", "float"], **{"External id": 77}),
              kernel(GEMM, 20, 5, 3, **{"External id": 77})]  # fmt: skip
    profile = read_profile(written(tmp_path / "t.json", trace(events)))
    assert profile.names[profile.operators.name[profile.activities.operator[0]]] == "aten::mm"


@pytest.mark.parametrize("chunk", [64, 1000])
def test_events_are_whole_whatever_the_size_of_the_pieces_read(
    training: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr("joulecast.workloads.trace_stream.CHUNK_BYTES", chunk)
    assert list(EventStream(training)) == training_events()


def test_time_stamps_of_today_keep_their_microseconds(tmp_path: Path) -> None:
    # 1.7e15 us: as seconds in float64 they would be 0.24 us apart
    events = [kernel(GEMM, 1_700_000_000_000_001, 3, 1), kernel(GEMM, 1_700_000_000_000_005, 3, 2)]
    profile = read_profile(written(tmp_path / "t.json", trace(events)))
    assert profile.activities.start_s.tolist() == pytest.approx([0, 4e-6], abs=1e-15)


@pytest.mark.parametrize("cut", [0.5, 0.9])
@pytest.mark.parametrize("name", ["cut.json", "cut.json.gz"])
def test_of_a_trace_that_breaks_off_what_is_whole_is_counted_and_told(tmp_path: Path, name: str, cut: float) -> None:
    whole = written(tmp_path / name, trace(training_events() * 400)).read_bytes()
    path = tmp_path / f"part-{name}"
    path.write_bytes(whole[: int(cut * len(whole))])
    profile = read_profile(path)
    assert 0.1 * cut * 2400 < len(profile.activities) < 2400
    assert any("breaks off" in note for note in profile.notes)


def test_a_broken_event_costs_that_event_alone(tmp_path: Path) -> None:
    text = json.dumps(trace(training_events()))
    text = text.replace('"name": "aten::add"', '"name": "aten\\x"', 1).replace('"bytes": 1000000', '"bytes": inf', 1)
    profile = read_profile(written(tmp_path / "bad.json", text))
    assert len(profile.activities) == 6
    assert any("1 damaged event" in note for note in profile.notes)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "is empty"),
        ("hello", "no profiler trace"),
        ('{"a": 1}', "no traceEvents"),
        ('{"traceEv', "damaged"),
        ('{"traceEvents": []}', "no kernels and no operators"),
        (b"\x1f\x8b\x08\x00garbage-garbage", "damaged"),
        (b"SQLite format 3\x00" + b"\xff" * 200, "damaged SQLite"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(
    tmp_path: Path, content: str | bytes, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["attribute", str(path)]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_trace_of_the_cpu_alone_says_so(tmp_path: Path) -> None:
    path = written(tmp_path / "cpu.json", trace([op("aten::mm", 0, 5, [[8, 8], [8, 8]], ["float", "float"])]))
    with pytest.raises(InputError, match="nothing ran on a GPU"):
        attribute(path)


def test_a_gpu_that_the_catalogue_lacks_is_asked_for_with_its_likes(tmp_path: Path) -> None:
    device = {
        "id": 0,
        "name": "NVIDIA PG123",
        "numSms": 108,
        "totalGlobalMem": 42e9,
        "computeMajor": 8,
        "computeMinor": 0,
    }
    path = written(tmp_path / "t.json", {"deviceProperties": [device], "traceEvents": training_events()})
    with pytest.raises(InputError, match=r"PG123 \(108 SMs, 39 GiB\).*--gpu; like it: A100-PCIE-40GB"):
        attribute(path)


def test_another_gpu_than_the_trace_s_is_warned_of(training: Path) -> None:
    found = attribute(training, "v100-sxm-32gb")
    assert any("108 SMs" in line for line in found.warnings)


# --- Nsight Systems --------------------------------------------------------------------------------------------------


def nsight(path: Path) -> Path:
    database = sqlite3.connect(path)
    database.executescript(
        """
        create table StringIds (id integer, value text);
        insert into StringIds values (1, 'ampere_sgemm_128x64_nn'), (2, 'sgemm');
        create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, end integer, deviceId integer, streamId integer,
            correlationId integer, demangledName integer, shortName integer, gridX integer, gridY integer,
            gridZ integer, blockX integer, blockY integer, blockZ integer);
        insert into CUPTI_ACTIVITY_KIND_KERNEL values (2000000, 2400000, 0, 7, 1, 1, 2, 64, 8, 1, 128, 1, 1);
        create table CUPTI_ACTIVITY_KIND_RUNTIME (start integer, end integer, globalTid integer, correlationId integer);
        insert into CUPTI_ACTIVITY_KIND_RUNTIME values (1500000, 1510000, 42, 1);
        create table CUPTI_ACTIVITY_KIND_MEMCPY (start integer, end integer, deviceId integer, streamId integer,
            correlationId integer, bytes integer, copyKind integer);
        insert into CUPTI_ACTIVITY_KIND_MEMCPY values (2500000, 2600000, 0, 7, 2, 4096, 1);
        create table NVTX_EVENTS (start integer, end integer, eventType integer, text text, textId integer,
            globalTid integer);
        insert into NVTX_EVENTS values (1000000, 3000000, 59, 'block 1', null, 42);
        insert into NVTX_EVENTS values
            (1400000, 1600000, 59, 'aten::mm, seq = 7, sizes = [[1024, 512], [512, 512]]', null, 42);
        create table TARGET_INFO_GPU (id integer, name text, smCount integer, totalMemory integer);
        insert into TARGET_INFO_GPU values (0, 'NVIDIA A100-SXM4-80GB', 108, 85000000000);
        """
    )
    database.commit()
    database.close()
    return path


def test_an_nsight_export_is_read_with_its_ranges_and_shapes(tmp_path: Path) -> None:
    path = nsight(tmp_path / "report.sqlite")
    found = attribute(path)
    assert found.gpu == "A100-SXM-80GB"
    assert found.shares[0].assignment.units[0].columns == {"m": 1024, "n": 512, "k": 512, "dtype": "fp32"}
    assert "block 1" in found.table("layer")["name"]
    assert found.shares[0].profile.activities.time_s.tolist() == pytest.approx([400e-6, 100e-6])
    assert [one.name for one in tmp_path.iterdir()] == ["report.sqlite"]


def test_the_operators_of_an_nsight_export_are_priced_in_the_formats_of_their_kernels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = nsight(tmp_path / "report.sqlite")
    workload = jc.workload(path)
    assert workload.flop("matmul") == 2 * 1024 * 512 * 512
    assert workload.tables["gemm"].words("dtype") == ["fp32"]
    database = sqlite3.connect(path)
    database.execute("update StringIds set value = 'ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_nn' where id = 1")
    database.commit()
    database.close()
    assert jc.workload(path).tables["gemm"].words("dtype") == ["bf16"]
    assert main(["predict", "--trace", str(path), "--gpu", "h100", "--json"]) == 0
    assert "1 priced by their shapes" in capsys.readouterr().out
    with pytest.raises(InputError, match="batch can't be asked of it"):
        jc.workload(path, batch=8)
    database = sqlite3.connect(path)
    database.execute("delete from NVTX_EVENTS where text like 'aten%'")
    database.commit()
    database.close()
    assert main(["predict", "--trace", str(path), "--gpu", "h100"]) == 2
    told = capsys.readouterr().err
    assert "record_shapes=True" in told
    assert told.count("\n") == 1


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "x.sqlite")
    database.execute("create table recipes (name text)")
    database.commit()
    database.close()
    with pytest.raises(InputError, match=r"no Nsight Systems export \(tables: recipes\)"):
        read_profile(tmp_path / "x.sqlite")


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "family", "library", "dtype", "tile", "layout"),
    [
        ("ampere_sgemm_128x64_tn", "gemm", "cuBLAS", "fp32", (128, 64, 0), "tn"),
        (GEMM, "gemm", "cuBLAS", "fp16", (128, 128, 0), "nn"),
        ("volta_h884gemm_256x128_ldg8_nt", "gemm", "cuBLAS", "fp16", (256, 128, 0), "nt"),
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256x64_stage3_warpsize2x4x1_tensor16x8x16_kernel",
         "gemm", "cuBLAS", "bf16", (128, 256, 64), "tn"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>(Params)",
         "gemm", "CUTLASS", "tf32", (64, 64, 16), "nn"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x256_32x3_tn_align8>(Params)",
         "gemm", "CUTLASS", "bf16", (128, 256, 32), "tn"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", "gemm", "cuBLAS", "bf16", (192, 192, 64), ""),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SN", "gemm", "rocBLAS", "fp16", (128, 128, 32), "nn"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>>(P)",
         "attention", "attention", "bf16", (128, 64, 0), ""),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::MainloopFwdSm90<2, cutlass::half_t>>>(P)",
         "attention", "attention", "fp16", (), ""),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64>>(P)",
         "attention", "attention", "", (), ""),
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::half_t>::Params)",
         "attention", "attention", "fp16", (64, 64, 0), ""),
        ("sm80_xmma_dgrad_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4",
         "convolution", "cuDNN", "fp16", (128, 128, 32), ""),
        ("void cudnn::winograd_nonfused::winogradForwardFilter4x4<float, float>(P)",
         "convolution", "cuDNN", "fp32", (), ""),
        ("triton_poi_fused_add_mul_relu_3", "elementwise", "Triton", "", (), ""),
        ("triton_red_fused_native_layer_norm_5", "normalisation", "Triton", "", (), ""),
        ("triton_per_fused__softmax_2", "softmax", "Triton", "", (), ""),
        ("triton_tem_fused_mm_0", "gemm", "Triton", "", (), ""),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "collective", "NCCL", "bf16", (), ""),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::Half, float, c10::Half>(P)",
         "softmax", "PyTorch", "fp16", (), ""),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>",
         "copy", "PyTorch", "", (), ""),
        ("void at::native::indexSelectLargeIndex<float, long, unsigned int>(P)", "gather", "PyTorch", "fp32", (), ""),
        ("void cub::DeviceRadixSortOnesweepKernel<cub::Policy<long, int>>(P)", "sort and scan", "CUB", "int64", (), ""),
        ("void splitKreduce_kernel<32, 16, int, float, __half>(P)", "gemm reduction", "cuBLAS", "fp16", (), ""),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(P)",
         "optimizer", "PyTorch", "fp32", (), ""),
        ("void at::native::batch_norm_collect_statistics_kernel<at::native::InvStd, float, float>(P)",
         "normalisation", "PyTorch", "fp32", (), ""),
        ("miopenSp3AsmConv_v30_3_1_gfx90a_fp32_f2x3_stride1", "convolution", "cuDNN", "fp32", (), ""),
        ("my_secret_thing", "unrecognised", "", "", (), ""),
    ],
)  # fmt: skip
def test_names_of_kernels_tell_family_library_format_and_tile(
    name: str, family: str, library: str, dtype: str, tile: tuple[int, ...], layout: str
) -> None:
    found = parsed(name)
    assert (found.family, found.library, found.dtype, found.tile, found.layout) == (
        family,
        library,
        dtype,
        tile,
        layout,
    )


def test_elementwise_names_tell_tensors_and_elements_a_thread() -> None:
    assert (parsed(ADD).tensors, parsed(ADD).elements_per_thread) == (3, 4)


def test_what_a_wrapper_wraps_is_its_short_name() -> None:
    assert short_name("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>(P)") == (
        "cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4"
    )


@given(st.text(max_size=80))
@settings(max_examples=200, deadline=None)
def test_no_name_breaks_the_parser(name: str) -> None:
    parsed(name)
    short_name(name)


# --- operators -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dims", "types", "concrete", "kind", "columns"),
    [
        ("aten::addmm", ((96,), (1024, 512), (512, 96), (), ()), ("float",) * 3 + ("Scalar",) * 2, (),
         "gemm", {"m": 1024, "n": 96, "k": 512, "dtype": "fp32"}),
        ("aten::bmm", ((32, 128, 64), (32, 64, 256)), ("c10::BFloat16",) * 2, (),
         "batched_gemm", {"batch": 32, "m": 128, "n": 256, "k": 64, "dtype": "bf16"}),
        ("aten::cudnn_convolution", ((8, 64, 56, 56), (128, 64, 3, 3), (), (), (), ()),
         ("c10::Half",) * 2, ("", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"),
         "conv2d", {"batch_size": 8, "in_channels": 64, "out_channels": 128, "height": 56, "width": 56, "kernel_h": 3,
                    "kernel_w": 3, "groups": 1, "stride": 2, "padding": 1, "dilation": 1, "dtype": "fp16"}),
        ("aten::_flash_attention_forward", ((2, 512, 16, 64), (2, 512, 4, 64), (2, 512, 4, 64)),
         ("c10::Half",) * 3, ("",) * 8 + ("True",),
         "context_attention", {"batch_size": 2, "query_len": 512, "num_heads": 16, "num_kv_heads": 4, "head_dim": 64,
                               "attn_dtype": "fp16"}),
        ("aten::copy_", ((64, 8), (64, 8)), ("c10::Half", "float"), (),
         "copy", {"elements": 512, "dtype": "fp32", "out_dtype": "fp16"}),
        ("aten::cat", (((4, 8), (2, 8)), ()), ("TensorList", "Scalar"), (), "copy", {"elements": 48, "dtype": "fp32"}),
        ("nccl:all_reduce", ((1000,),), ("float",), (),
         "nccl", {"collective": "all_reduce", "num_gpus": 8, "message_bytes": 4000, "dtype": "fp32"}),
    ],
)  # fmt: skip
def test_operators_with_shapes_become_our_kinds(
    name: str, dims: Any, types: Any, concrete: Any, kind: str, columns: dict[str, Any]
) -> None:
    (row,) = rows_of(name, Signature(dims, types, concrete), ranks=8)
    assert (row.kind, dict(row.columns)) == (kind, columns)


@pytest.mark.parametrize(
    ("name", "dims", "types"),
    [("aten::mm", ((4, 5), (6, 7)), ("float", "float")), ("aten::mm", (), ()), ("mylib::op", ((4,),), ("float",)),
     ("aten::cudnn_convolution", ((8, 64, 56, 56), (128, 64, 3, 3)), ("float", "float")),
     ("aten::mm", ((0, 5), (5, 7)), ("float", "float"))],
)  # fmt: skip
def test_operators_whose_record_lacks_what_it_takes_have_no_rows(name: str, dims: Any, types: Any) -> None:
    assert rows_of(name, Signature(dims, types)) == ()


# --- the account -----------------------------------------------------------------------------------------------------

spans = st.lists(
    st.tuples(st.floats(0, 90), st.floats(0, 10), st.floats(0, 500)), min_size=0, max_size=30
)  # start, time, dynamic power


@given(spans)
@settings(max_examples=150, deadline=None)
def test_parts_and_idle_sum_to_the_integral_of_the_power_and_keep_the_limit(
    rows: list[tuple[float, float, float]],
) -> None:
    start, time, power = (np.array([row[i] for row in rows], dtype=float) for i in range(3))
    found = account(start, time, power, static_w=70, limit_w=400, window_s=(0, 100))
    assert found.energy_j.sum() + found.idle_j == pytest.approx(found.total_j, rel=1e-9, abs=1e-7)
    assert found.alone_s.sum() + found.idle_s == pytest.approx(100, rel=1e-9)
    assert found.power_w.max() <= 400 + 1e-6
    assert found.power_w.min() >= 70 - 1e-9


def test_kernels_that_overlap_share_the_static_power_by_wall_time() -> None:
    # A from 0 to 2 s, B from 1 to 3 s: one second each alone, one together
    found = account(np.array([0.0, 1.0]), np.array([2.0, 2.0]), np.array([100.0, 50.0]), static_w=60, limit_w=1e9,
                    window_s=(0, 4))  # fmt: skip
    assert found.energy_j.tolist() == pytest.approx([2 * 100 + 1.5 * 60, 2 * 50 + 1.5 * 60])
    assert found.idle_j == pytest.approx(60)
    assert found.power_w.tolist() == pytest.approx([160, 210, 110, 60])


def test_what_would_exceed_the_limit_is_cut_alike() -> None:
    found = account(np.array([0.0, 0.0]), np.array([1.0, 1.0]), np.array([300.0, 100.0]), static_w=100, limit_w=300,
                    window_s=(0, 1))  # fmt: skip
    assert found.energy_j.tolist() == pytest.approx([150 + 50, 50 + 50])
    assert found.capped_j.sum() == pytest.approx(200)


# --- attribution -----------------------------------------------------------------------------------------------------


def test_every_table_sums_to_the_whole(training: Path) -> None:
    found = attribute(training, clock_mhz=1410)
    for by in ("kernel", "family", "operator", "layer", "step", "gpu", "launch"):
        columns = found.table(by)
        assert sum(columns["energy_j"]) == pytest.approx(found.energy_j, rel=1e-9), by
        assert sum(columns["wall_s"]) == pytest.approx(found.time_s, rel=1e-9), by
        assert sum(columns["share"]) == pytest.approx(1, rel=1e-9), by


def test_each_launch_has_its_energy_and_place(training: Path) -> None:
    found = attribute(training)
    columns = found.table("launch")
    assert sum(columns["energy_j"]) == pytest.approx(found.energy_j)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    first = rows[0]
    assert (first["name"], first["operator"], first["layer"], first["step"]) == (GEMM, "aten::mm", "encoder", "step 3")
    assert first["energy_j"] == pytest.approx(first["power_w"] * 600e-6)
    assert len(rows) == 6 + 1


def test_like_steps_take_like_energy_and_their_waits_count(training: Path) -> None:
    steps = attribute(training).table("step")
    assert steps["name"] == ["step 3", "step 4"]
    by_name = dict(zip(steps["name"], zip(steps["energy_j"], steps["idle_s"], strict=True), strict=True))
    # step 3 lasts until step 4 begins (10 ms), step 4 until its own end (9 ms); 700 us of each run something
    assert by_name["step 3"][1] == pytest.approx(10e-3 - 700e-6)
    assert by_name["step 4"][1] == pytest.approx(9e-3 - 700e-6)


def test_layers_come_from_annotations_and_modules(training: Path, tmp_path: Path) -> None:
    assert attribute(training).table("layer")["name"][0] in ("encoder", "(idle)")
    events = [
        event("python_function", "nn.Module: Net_0", 0, 100),
        event("python_function", "nn.Module: Linear_1", 5, 50),
        event("python_function", "torch/nn/functional.py(12): linear", 6, 40),
        op("aten::mm", 10, 20, [[64, 64], [64, 64]], ["float", "float"]),
        launch(12, 1),
        kernel(GEMM, 30, 5, 1),
    ]
    found = attribute(written(tmp_path / "m.json", trace(events)))
    assert "Net_0 / Linear_1" in found.table("layer")["name"]


def test_what_autograd_runs_belongs_to_the_layer_of_its_forward_operator(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    backward = event("cpu_op", "MmBackward0", 50, 30, tid=2, **{"Sequence number": 5, "Fwd thread id": 1})
    events = [
        event("user_annotation", "## head ##", 0, 40),
        event("cpu_op", "aten::mm", 5, 20, **{"Sequence number": 5, "Fwd thread id": 0}, **shapes),
        launch(6, 1), kernel(GEMM, 10, 5, 1),
        backward,
        event("cpu_op", "aten::mm", 55, 20, tid=2, **shapes),
        event("cuda_runtime", "cudaLaunchKernel", 56, 2, tid=2, correlation=2), kernel(GEMM, 60, 5, 2),
    ]  # fmt: skip
    found = attribute(written(tmp_path / "b.json", trace(events)))
    assert {"head", "head (backward)"} <= set(found.table("layer")["name"])
    assert ("head", "backward", "MmBackward0", "aten::mm", GEMM) in stacks(found)


def test_energy_of_a_kernel_is_that_of_its_work_whatever_time_it_took(tmp_path: Path) -> None:
    def energy(duration: float) -> float:
        events = [op("aten::mm", 0, 9, [[4096, 4096], [4096, 4096]], ["c10::Half"] * 2), launch(1, 1),
                  kernel(GEMM, 20, duration, 1)]  # fmt: skip
        found = attribute(written(tmp_path / "t.json", trace(events)), clock_mhz=1410)
        static = found.shares[0].energies.static_w * duration * 1e-6
        return float(found.shares[0].account.energy_j[0]) - static

    # the arithmetic and traffic are the same; only what the SMs draw by time grows
    assert energy(1000) < energy(2000) < 1.5 * energy(1000)


def test_predicted_and_measured_times_stand_side_by_side(training: Path) -> None:
    columns = attribute(training).table("kernel")
    row = columns["name"].index(GEMM)
    assert columns["measured_s"][row] == pytest.approx(2 * 600e-6)
    # 2 x 4096^3 FLOP at 312 TFLOP/s is 440 us at the least
    assert 2 * 440e-6 < columns["predicted_s"][row] < 2 * 900e-6
    assert columns["dtype"][row] == "fp16"
    assert columns["basis"][row] == "shapes"


def test_kernels_of_one_operator_share_its_work(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 50, [[4096, 4096], [4096, 4096]], ["c10::Half"] * 2), launch(1, 1), launch(2, 2),
              kernel(GEMM, 60, 300, 1), kernel(GEMM, 400, 100, 2)]  # fmt: skip
    found = attribute(written(tmp_path / "t.json", trace(events)))
    assert found.shares[0].assignment.share.tolist() == pytest.approx([0.75, 0.25])


def test_without_shapes_matrix_products_are_counted_by_their_family_and_it_is_told(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 9), launch(1, 1), kernel(GEMM, 20, 100, 1)]
    found = attribute(written(tmp_path / "t.json", trace(events)), clock_mhz=1410)
    assert any("no shapes were recorded" in note for note in found.notes)
    assert basis_shares(found.shares)["family"] == pytest.approx(1)
    gpu = load_gpu("a100-sxm-80gb")
    assert 0.5 * gpu.power_limit_default_w < found.power_w <= gpu.power_limit_default_w


def test_elementwise_kernels_are_priced_from_name_and_grid(tmp_path: Path) -> None:
    events = [kernel(ADD, 20, 100, 1, grid=[8192, 1, 1])]
    unit = attribute(written(tmp_path / "t.json", trace(events))).shares[0].assignment.units[0]
    # 8192 blocks x 128 threads x 4 elements; three tensors, one of them written
    assert (unit.columns["elements"], unit.columns["inputs"], unit.columns["dtype"]) == (8192 * 128 * 4, 2, "fp32")


def test_unrecognised_kernels_are_counted_by_their_time_and_told(tmp_path: Path) -> None:
    found = attribute(written(tmp_path / "t.json", trace([kernel("my_secret_thing", 0, 100, 1)])))
    assert recognised_share(found.shares) == 0
    assert found.table("family")["name"] == ["unrecognised"]
    assert any("not recognised" in line for line in found.warnings)
    assert found.energy_j > 0


def test_ranks_are_added_up(training: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "rank1.json", trace(training_events(), distributedInfo={"rank": 1, "world_size": 2}))
    one, both = attribute(training), attribute([training, other])
    assert both.energy_j == pytest.approx(2 * one.energy_j)
    assert both.power_w == pytest.approx(one.power_w)
    assert "rank 1, GPU 0" in both.table("gpu")["name"]


def test_a_known_clock_narrows_the_interval(training: Path) -> None:
    unknown, known = attribute(training), attribute(training, clock_mhz=1410)
    assert known.energy_j == pytest.approx(unknown.energy_j)
    assert known.interval_j[0] >= unknown.interval_j[0]
    assert known.interval_j[0] < known.energy_j < known.interval_j[1]


# --- power logs ------------------------------------------------------------------------------------------------------

T0 = 1_700_000_000.0


@pytest.fixture(scope="module")
def dated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One step of 2 s whose second half is busy, with the time of day in its stamps."""
    events = [event("user_annotation", "ProfilerStep#1", T0 * 1e6, 2e6)]
    events += [kernel("my_kernel", T0 * 1e6 + 1e6, 1e6, 1)]
    return written(tmp_path_factory.mktemp("dated") / "t.json", trace(events))


def readings(found: Any, factor: float, every: float = 0.1) -> list[tuple[float, float]]:
    share = found.shares[0]
    at = np.arange(-1.0, 3.0, every)
    place = np.searchsorted(share.account.edges_s, at, side="right") - 1
    inside = (at >= 0) & (at < 2)
    watts = np.where(
        inside, share.account.power_w[np.clip(place, 0, len(share.account.power_w) - 1)], share.energies.static_w
    )
    return [(T0 + float(t), factor * float(w)) for t, w in zip(at, watts, strict=True)]


def log_text(form: str, pairs: list[tuple[float, float]]) -> str:
    from datetime import UTC, datetime

    def stamp(t: float, pattern: str) -> str:
        return datetime.fromtimestamp(t, UTC).strftime(pattern)

    if form == "csv":
        return "time_s,power_w\n" + "".join(f"{t},{w}\n" for t, w in pairs)
    if form == "zeus":
        return "time,power0,power1\n" + "".join(f"{t},{w},50\n" for t, w in pairs)
    if form == "nvidia-smi":
        rows = (f"{stamp(t, '%Y/%m/%d %H:%M:%S.%f')[:-3]}, {gpu}, {w:.2f} W\n" for t, w in pairs for gpu in (0, 1))
        return "timestamp, index, power.draw [W]\n" + "".join(rows)
    if form == "nvidia-smi dmon":
        head = "#Date       Time        gpu    pwr  gtemp\n#YYYYMMDD   HH:MM:SS    Idx      W      C\n"
        return head + "".join(f" {stamp(t, '%Y%m%d   %H:%M:%S')}      0    {w:.0f}     40\n" for t, w in pairs)
    head = "#Entity   POWER\nID                     W\n"
    return head + "".join(f"GPU 0     {w:.3f}\n" for _, w in pairs)


@pytest.mark.parametrize("form", ["csv", "zeus", "nvidia-smi"])
def test_a_meter_that_reads_a_fifth_more_gives_that_factor(dated: Path, tmp_path: Path, form: str) -> None:
    found = attribute(dated, clock_mhz=1410)
    path = tmp_path / "power.log"
    path.write_text(log_text(form, readings(found, 1.2, every=0.02)))
    log = read_power_log(path)
    assert log.format == form
    (meter,) = reconcile(found, log)
    assert meter.factor == pytest.approx(1.2, rel=0.02)
    assert meter.factor_interval[0] < 1.2 < meter.factor_interval[1]
    assert meter.aligned_by == "clock"
    assert meter.overlap_s == pytest.approx(2)
    assert meter.measured_j == pytest.approx(1.2 * found.energy_j, rel=0.02)


def test_readings_in_local_time_are_moved_by_whole_quarter_hours(dated: Path, tmp_path: Path) -> None:
    found = attribute(dated, clock_mhz=1410)
    path = tmp_path / "power.csv"
    path.write_text(log_text("nvidia-smi", [(t + 5.5 * 3600, w) for t, w in readings(found, 1.0, every=0.02)]))
    (meter,) = reconcile(found, read_power_log(path))
    assert (meter.aligned_by, meter.shift_s) == ("clock and time zone", -5.5 * 3600)
    assert meter.factor == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("form", ["nvidia-smi dmon", "dcgm"])
def test_monitors_print_power_by_gpu(dated: Path, tmp_path: Path, form: str) -> None:
    path = tmp_path / "power.txt"
    path.write_text(log_text(form, [(T0 + i, 100.0 + i) for i in range(5)]))
    log = read_power_log(path)
    assert (log.format, log.gpus) == (form, (0,))
    assert log.power_w[0].tolist() == [100, 101, 102, 103, 104]
    assert np.diff(log.time_s[0]).tolist() == [1, 1, 1, 1]


def test_a_log_without_a_common_clock_is_aligned_by_shape(dated: Path, tmp_path: Path) -> None:
    found = attribute(dated, clock_mhz=1410)
    path = tmp_path / "power.csv"
    path.write_text("t,watts\n" + "".join(f"{t - T0 + 500:.3f},{w}\n" for t, w in readings(found, 1.0, every=0.02)))
    (meter,) = reconcile(found, read_power_log(path))
    assert meter.aligned_by == "shape"
    assert meter.shift_s == pytest.approx(-500, abs=0.1)
    assert meter.factor == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,b\n1,2\n", "no power log"),
        ("time_s,power_w\n1,2\n", "at least two"),
        ("time_s,power_w\n1,x\n2,3\n", "no power in W"),
        ("time_s,power_w\nnoon,1\n2,3\n", "no time"),
        ("time_s,power_w\n1,-5\n2,3\n", "powers that are none"),
        ("#Entity   TMPTR\nID    C\nGPU 0   40\n", "no column POWER"),
    ],
)
def test_what_is_no_power_log_is_refused_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=told):
        read_power_log(path)


def test_each_gpu_of_several_goes_with_its_own_readings(dated: Path, tmp_path: Path) -> None:
    events = json.loads(dated.read_text())["traceEvents"]
    events += [{**events[-1], "args": {**events[-1]["args"], "device": 1}}]
    found = attribute(written(tmp_path / "two.json", trace(events)), "a100", clock_mhz=1410)
    pairs = readings(found, 1.0, every=0.02)
    path = tmp_path / "power.csv"
    path.write_text("time,power0,power1\n" + "".join(f"{t},{w},{2 * w}\n" for t, w in pairs))
    one, two = reconcile(found, read_power_log(path))
    assert (one.factor, two.factor) == pytest.approx((1, 2), rel=0.02)


def test_a_meter_that_reads_too_seldom_is_told(dated: Path, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"time_s,power_w\n{T0 - 9},100\n{T0 + 1},100\n{T0 + 11},100\n")
    with pytest.raises(InputError, match=r"1 reading.* more often"):
        reconcile(attribute(dated, "a100"), read_power_log(path))


def test_a_log_of_another_day_is_refused(dated: Path, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("time_s,power_w\n1600000000,100\n1600000001,100\n")
    with pytest.raises(InputError, match="does not cover the trace"):
        reconcile(attribute(dated), read_power_log(path))


# --- outputs ---------------------------------------------------------------------------------------------------------


def test_the_flame_graph_shows_every_joule(training: Path) -> None:
    found = attribute(training)
    assert sum(stacks(found).values()) == pytest.approx(found.energy_j)
    picture = svg(stacks(found), title="energy <by> operator", unit="J")
    assert picture.startswith("<svg")
    assert "energy &lt;by&gt; operator" in picture
    assert "aten::mm" in picture
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")


def test_the_command_line_gives_a_page_json_csv_and_pictures(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = ["--flame", str(tmp_path / "f.html"), "--perfetto", str(tmp_path / "p.json")]
    assert main(["attribute", str(training), "--by", "layer", *pictures]) == 0
    page = capsys.readouterr().out
    assert "encoder" in page
    assert max(map(len, page.splitlines())) <= 80
    assert "<svg" in (tmp_path / "f.html").read_text()
    events = json.loads((tmp_path / "p.json").read_text())["traceEvents"]
    assert sum(one["ph"] == "X" for one in events) == 6
    assert any(one["ph"] == "C" for one in events)
    assert main(["attribute", str(training), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert sum(row["energy_j"] for row in document["groups"]) == pytest.approx(document["energy_j"])
    assert main(["attribute", str(training), "--csv", "--by", "kernel"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("name,count,time_s")


# --- real traces -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "gpu"), [("a100_train", "a100-sxm-40gb"), ("v100_train", "v100-sxm-16gb")])
def test_kernels_of_97_per_cent_of_the_time_of_real_traces_are_recognised(data_dir: Path, name: str, gpu: str) -> None:
    found = attribute(data_dir / "traces" / f"pytorch_{name}.json.gz", gpu)
    assert recognised_share(found.shares) >= 0.97
    assert sum(found.table("step")["energy_j"]) == pytest.approx(found.energy_j)
    described = load_gpu(gpu)
    assert described.idle_w < found.power_w < described.power_limit_default_w


def test_a_trace_of_rocm_is_read_with_other_names(data_dir: Path) -> None:
    found = attribute(data_dir / "traces" / "pytorch_rocm_small.json.gz", "mi250-gcd")
    assert recognised_share(found.shares) >= 0.97
    assert "gemm" in found.table("family")["name"]


def test_the_real_trace_of_a_cpu_says_what_it_lacks(data_dir: Path) -> None:
    with pytest.raises(InputError, match="15 operators on the CPU"):
        attribute(data_dir / "traces" / "pytorch_cpu_only.json.gz")


# --- operators of a trace as a workload ------------------------------------------------------------------------------


def test_operators_of_a_trace_are_a_workload_of_one_pass_a_step(training: Path) -> None:
    found = jc.workload(training)
    # two steps, each one product of 4096^3 (once, though recorded as linear and as mm within it) and one addition
    assert found.passes[0].repeats == 2
    assert found.flop("matmul") == 2 * 2 * 4096**3
    assert found.tables["elementwise"]["elements"].tolist() == [2**22]
    assert found.tables["gemm"]["count"].tolist() == [1]


def test_gradients_in_a_workload_of_a_trace_belong_to_the_layer_of_their_operator(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    events = [
        event("user_annotation", "## head ##", 0, 40),
        event("cpu_op", "aten::mm", 5, 20, **{"Sequence number": 5, "Fwd thread id": 0}, **shapes),
        event("cpu_op", "MmBackward0", 50, 30, tid=2, **{"Sequence number": 5, "Fwd thread id": 1}),
        event("cpu_op", "aten::mm", 55, 20, tid=2, **shapes),
    ]
    found = jc.workload(written(tmp_path / "t.json", trace(events)))
    assert found.layers == ("head", "head (backward)")


def test_a_compressed_trace_is_a_workload_too_and_what_runs_on_the_cpu_is_left_out(tmp_path: Path) -> None:
    events = [*training_events(), op("aten::mm", 9_500, 100, [[512, 512], [512, 512]], ["float", "float"])]
    found = jc.workload(written(tmp_path / "t.json.gz", trace(events)))
    assert found.flop("matmul") == 2 * 2 * 4096**3


def test_a_cpu_only_trace_with_shapes_is_priced_for_a_gpu(tmp_path: Path) -> None:
    path = written(tmp_path / "c.json", trace([op("aten::mm", 0, 100, [[512, 512], [512, 512]], ["float"] * 2)]))
    assert jc.predict(path, "a100").energy_j > 0


def test_products_that_ran_in_tf32_are_priced_in_it(tmp_path: Path) -> None:
    name = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>(P)"
    events = [op("aten::mm", 0, 50, [[512, 512], [512, 512]], ["float"] * 2), launch(1, 1), kernel(name, 60, 10, 1)]
    assert jc.workload(written(tmp_path / "t.json", trace(events))).tables["gemm"].words("dtype") == ["tf32"]


def test_operators_that_can_t_be_priced_are_told_with_their_share_of_the_time(tmp_path: Path) -> None:
    events = [*training_events(), op("mylib::op", 9_000, 90, [[2**20]], ["float"]), launch(9_001, 99),
              kernel("my_kernel", 9_100, 1_400, 99)]  # fmt: skip
    found = jc.workload(written(tmp_path / "t.json", trace(events)))
    assert any("took 50 % of the measured kernel time" in note for note in found.notes)
    # 4 MiB over two steps
    assert found.unpriced["mylib::op"] == 2**20 * 4 / 2


def test_a_profile_taken_by_torch_counts_the_flop_of_a_training_step(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    net = torch.nn.Sequential(torch.nn.Linear(256, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    x = torch.randn(32, 256)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_modules=True, with_stack=True) as prof:
            net(x).sum().backward()
        prof.export_chrome_trace(str(tmp_path / "t.json"))
    found = jc.workload(tmp_path / "t.json")
    # forward, gradient of both weights, and of the second layer's input; 2 FLOP a multiply-add
    forward = 2 * 32 * (256 * 128 + 128 * 10)
    assert found.flop("matmul") == 2 * forward + 2 * 32 * 128 * 10
    assert "Sequential_0.Linear_0" in found.layers


def test_gradients_of_a_convolution_are_those_that_were_asked_for() -> None:
    dims = ((2, 16, 16, 16), (2, 3, 32, 32), (16, 3, 3, 3))
    mask = ("", "", "", "[16]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[False, True, True]")
    (row,) = rows_of("aten::convolution_backward", Signature(dims, ("float",) * 3, mask))
    assert (row.kind, row.columns["stride"], row.columns["padding"]) == ("conv2d_weight_gradient", 2, 1)
    # without values of the arguments both are, and the step follows from the sizes
    both = rows_of("aten::convolution_backward", Signature(dims, ("float",) * 3))
    assert [one.kind for one in both] == ["conv2d_data_gradient", "conv2d_weight_gradient"]
    assert {(one.columns["stride"], one.columns["padding"]) for one in both} == {(2, 1)}


def test_each_gradient_kernel_does_its_own_gradient(tmp_path: Path) -> None:
    dims, types = [[8, 64, 28, 28], [8, 64, 28, 28], [64, 64, 3, 3]], ["c10::Half"] * 3
    base = "sm80_xmma_{}_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4"
    events = [op("aten::convolution_backward", 0, 50, dims, types), launch(1, 1), launch(2, 2),
              kernel(base.format("dgrad"), 60, 30, 1), kernel(base.format("wgrad"), 95, 40, 2)]  # fmt: skip
    assignment = attribute(written(tmp_path / "t.json", trace(events))).shares[0].assignment
    kinds = [assignment.units[unit].kind for unit in assignment.unit]
    assert kinds == ["conv2d_data_gradient", "conv2d_weight_gradient"]
    assert assignment.share.tolist() == [1, 1]


@pytest.mark.parametrize(("name", "gpu"), [("a100_train", "a100-sxm-40gb"), ("v100_train", "v100-sxm-16gb")])
def test_without_the_shapes_of_a_real_trace_its_energy_comes_out_alike(data_dir: Path, name: str, gpu: str) -> None:
    whole = read_profile(data_dir / "traces" / f"pytorch_{name}.json.gz")
    none = replace(whole.operators, signature=np.full_like(whole.operators.signature, -1))
    bare = replace(whole, operators=none, signatures=())
    assert attributed([bare], gpu).energy_j == pytest.approx(attributed([whole], gpu).energy_j, rel=0.05)


@pytest.mark.parametrize("arguments", [[], ["bert-base-uncased", "--trace", "x.json"], ["--trace", "nowhere.json"]])
def test_predict_takes_a_model_or_a_trace(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *arguments, "--gpu", "a100"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_options_that_a_trace_has_in_it_are_refused(training: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--trace", str(training), "--gpu", "a100", "--batch", "8"]) == 2
    assert "a trace has its shapes and formats in it" in capsys.readouterr().err


# --- predicted against measured times --------------------------------------------------------------------------------


def test_operations_that_ran_beside_others_are_scored_apart(tmp_path: Path) -> None:
    shapes = ([[4096, 4096], [4096, 4096]], ["c10::Half"] * 2)
    events = [op("aten::mm", 0, 9, *shapes), launch(1, 1), kernel(GEMM, 20, 600, 1),
              op("aten::mm", 700, 9, *shapes), launch(701, 2), kernel(GEMM, 800, 1000, 2),
              kernel("ncclDevKernel_AllReduce_Sum_f16_RING_LL(P)", 900, 800, 3, stream=9)]  # fmt: skip
    rows = time_errors(attribute(written(tmp_path / "t.json", trace(events))).shares)
    assert [(row["family"], row["ran"], row["operations"]) for row in rows] == [
        ("gemm", "alone", 1), ("gemm", "beside others", 1),
    ]  # fmt: skip
    assert rows[0]["time_s"] == pytest.approx(600e-6)


def test_a_collective_beside_a_product_slows_it_by_the_sms_it_holds(tmp_path: Path) -> None:
    collective = kernel("ncclDevKernel_AllReduce_Sum_f16_RING_LL(P)", 0, 1000, 3, stream=9, grid=[27, 1, 1])
    events = [kernel(GEMM, 100, 200, 1), collective, kernel(GEMM, 900, 200, 2), kernel(GEMM, 1500, 100, 4)]
    share = attribute(written(tmp_path / "t.json", trace(events))).shares[0]
    rows = np.flatnonzero(share.profile.activities.name == share.profile.names.index(GEMM))
    # 27 of 108 SMs held: 1.23 / 0.75 beside it; of the second product's 200 us half are
    factor = 1.23 / 0.75
    assert slowed(share, rows).tolist() == pytest.approx([factor, 200 / (100 / factor + 100), 1.0])


def test_products_of_rows_that_are_not_aligned_are_predicted_slower(tmp_path: Path) -> None:
    def predicted(align: int) -> float:
        name = f"void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align{align}>(P)"
        events = [op("aten::mm", 0, 9, [[512, 1024], [1024, 512]], ["float"] * 2), launch(1, 1), kernel(name, 20, 9, 1)]
        return float(attribute(written(tmp_path / "t.json", trace(events))).shares[0].energies.predicted_s[0])

    assert predicted(1) == pytest.approx(1.6 * predicted(4), rel=0.01)


def test_products_that_ran_alone_on_an_a100_are_predicted_within_15_per_cent(data_dir: Path) -> None:
    found = attribute(data_dir / "traces" / "pytorch_a100_train.json.gz", "a100-sxm-40gb")
    alone = next(row for row in time_errors(found.shares) if (row["family"], row["ran"]) == ("gemm", "alone"))
    assert alone["operations"] > 1000
    assert alone["median_error"] < 0.15


def test_products_beside_collectives_on_a_v100_are_predicted_within_20_per_cent(data_dir: Path) -> None:
    found = attribute(data_dir / "traces" / "pytorch_v100_train.json.gz", "v100-sxm-16gb")
    (row,) = (one for one in time_errors(found.shares) if one["family"] == "gemm")
    assert (row["ran"], row["operations"] > 400) == ("beside others", True)
    assert row["median_error"] < 0.2


# --- whatever a file holds -------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_trace_damaged_anywhere_is_read_or_refused_never_worse(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(json.dumps(trace(training_events())).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place : place + data.draw(st.integers(0, 30))] = data.draw(st.binary(max_size=6))
    path = tmp_path / "broken.json"
    cut = data.draw(st.integers(1, 900))
    path.write_bytes(bytes(raw) if data.draw(st.booleans()) else gzip.compress(bytes(raw))[:cut])
    with contextlib.suppress(InputError):
        assert 0 < attribute(path, "a100").energy_j < math.inf


@pytest.mark.parametrize(
    "change",
    [{"ts": "soon"}, {"dur": -5}, {"dur": None}, {"ts": float("nan")}, {"args": 7}, {"pid": "Spans", "args": {}},
     {"name": None}, {"args": {"grid": [1], "block": "x", "device": "gpu", "stream": [], "correlation": 1e300}},
     {"args": {"grid": [0, 0, 0], "block": [0, 0, 0]}}, {"dur": 0}, {"args": {"grid": [-4, 1, 1]}}],
)  # fmt: skip
def test_odd_events_are_left_out_or_counted_by_what_is_whole(tmp_path: Path, change: dict[str, Any]) -> None:
    odd = {**kernel(ADD, 3_000, 50, 77), **change}
    found = attribute(written(tmp_path / "t.json", trace([*training_events(), odd])), clock_mhz=1410)
    assert np.isfinite(found.energy_j)
    assert sum(found.table("kernel")["energy_j"]) == pytest.approx(found.energy_j)


def test_a_gpu_of_another_vendor_is_warned_of(training: Path) -> None:
    assert any("another vendor" in line for line in attribute(training, "mi210").warnings)


def test_graphs_that_were_traced_as_wholes_are_counted_by_their_time(tmp_path: Path) -> None:
    path = nsight(tmp_path / "g.sqlite")
    database = sqlite3.connect(path)
    database.execute(
        "create table CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start integer, end integer, deviceId integer, streamId integer, "
        "correlationId integer)"
    )
    database.execute("insert into CUPTI_ACTIVITY_KIND_GRAPH_TRACE values (3000000, 5000000, 0, 7, 9)")
    database.commit()
    database.close()
    found = attribute(path)
    assert any("1 CUDA graphs were traced as wholes" in note for note in found.notes)
    assert "CUDA graph" in found.table("kernel")["name"]
