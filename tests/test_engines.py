"""What serving engines run in place of a model's own operations: counts derived by hand, bytes and FLOP conserved."""

from __future__ import annotations

import numpy as np
import pytest

import joulecast as jc
from joulecast.gpus import load_gpu
from joulecast.kernels.registry import family_of
from joulecast.kernels.work import Conditions
from joulecast.lowering.execution import Execution
from joulecast.lowering.lower import lower
from joulecast.workloads.table import op_table

H100, L40S = load_gpu("H100-SXM-80GB"), load_gpu("L40S")
LLAMA = "meta-llama/Llama-3.1-8B"
SERVERS = ["vllm", "trtllm"]


def lowered(model, gpu=H100, execution=None, **options):
    options = {"batch": 4, "prompt_tokens": 128, "generate_tokens": 16, **options}
    return lower(jc.workload(model, **options), gpu, execution or Execution("cuda_graph", engine="vllm"))


def total(found, kind, phase="prefill"):
    """Launches of a kind in one pass of a phase, by layer or word."""
    table, passes = found.tables[kind], found.workload.passes
    rows = np.flatnonzero(np.array([one.phase == phase for one in passes])[table["pass_id"]])
    return {found.workload.layers[table["layer"][row]]: float(table["count"][row]) for row in rows}


@pytest.mark.parametrize("engine", SERVERS)
def test_projections_of_one_input_are_one_product(engine):
    found = lowered(LLAMA, execution=Execution("cuda_graph", engine=engine))
    gemm = found.tables["gemm"]
    widths = {found.workload.layers[layer]: n for layer, n in zip(gemm["layer"], gemm["n"], strict=True)}
    assert widths["layers.*.attention.qkv_proj"] == (32 + 2 * 8) * 128
    assert widths["layers.*.mlp.gate_up_proj"] == 2 * 14336
    assert total(found, "gemm") == {
        "layers.*.attention.qkv_proj": 32, "layers.*.attention.o_proj": 32,
        "layers.*.mlp.gate_up_proj": 32, "layers.*.mlp.down_proj": 32, "lm_head": 1,
    }  # fmt: skip


@pytest.mark.parametrize("model", [LLAMA, "Qwen/Qwen2.5-7B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3"])
@pytest.mark.parametrize("tp", [1, 4])
def test_no_arithmetic_is_lost(model, tp):
    def flop(engine):
        table = lowered(model, execution=Execution("cuda_graph", engine=engine, tp=tp)).tables["gemm"]
        return float((table["batch"] * table["m"] * table["n"] * table["k"] * table["count"]).sum())

    assert flop("vllm") == flop("pytorch")


def test_key_value_heads_kept_by_each_gpu_are_merged_too():
    found = lowered(LLAMA, execution=Execution("cuda_graph", engine="vllm", tp=16))
    gemm = found.tables["gemm"]
    row = found.workload.layers.index("layers.*.attention.qkv_proj")
    assert set(gemm["n"][gemm["layer"] == row]) == {(2 + 2 * 0.5) * 128}


def test_sums_are_taken_into_the_norms_behind_them():
    found = lowered(LLAMA)
    norms = found.tables["row_reduction"]
    decode = found.workload.passes[-1]
    assert decode.phase == "decode"
    words = dict(zip(norms.words("op"), norms["count"].tolist(), strict=True))
    assert words == {"add_rms_norm": 32, "rms_norm": 1}  # of each of the two norms of a layer; the last stands alone
    assert "add" not in found.tables["elementwise"].words("op")
    # nothing is fused that engines run apart: GPT-2's layer norms and sums
    other = lowered("gpt2")
    assert "add" in other.tables["elementwise"].words("op")
    assert set(other.tables["row_reduction"].words("op")) == {"layer_norm"}


def test_a_sum_and_its_norm_in_one_move_less_and_compute_alike():
    shape = {"rows": 4096, "dim": 8192, "dtype": "bf16"}
    tensor = 4096 * 8192 * 2
    work = {
        op: family_of("row_reduction").work(op_table("row_reduction", {**shape, "op": op}), H100, Conditions("vllm"))
        for op in ("rms_norm", "add_rms_norm")
    }
    # a second tensor read, and the sum written beside the result
    moved = work["add_rms_norm"].l2_bytes - work["rms_norm"].l2_bytes
    assert moved == pytest.approx([2 * tensor])
    assert work["add_rms_norm"].useful_flop - work["rms_norm"].useful_flop == pytest.approx([4096 * 8192])
    both = jc.predict_kernels("row_reduction", {**shape, "op": ["rms_norm", "add_rms_norm"]}, "h100")["time_s"]
    add = jc.predict_kernels(
        "elementwise", {"op": "add", "elements": 4096 * 8192, "inputs": 2, "dtype": "bf16"}, "h100"
    )
    assert both[0] < both[1] < both[0] + add["time_s"][0]


def test_short_allreduces_go_by_the_engines_own_kernel():
    execution = Execution("cuda_graph", engine="vllm", tp=4)
    found = lowered(LLAMA, execution=execution, batch=8, prompt_tokens=512)
    # prefill: 8 x 512 tokens of 4,096 numbers are 32 MiB; decoding: 8 of them 64 KiB
    assert set(found.tables["nccl"]["message_bytes"]) == {32 * 2**20}
    assert set(found.tables["custom_allreduce"]["message_bytes"]) == {64 * 2**10}
    assert "custom_allreduce" not in lowered(LLAMA, L40S, execution).tables, "four GPUs on the host's bus"
    assert "custom_allreduce" in lowered(LLAMA, L40S, Execution("cuda_graph", engine="vllm", tp=2)).tables
    assert "custom_allreduce" not in lowered(LLAMA, execution=Execution("cuda_graph", engine="vllm", tp=16)).tables
    assert "custom_allreduce" not in lowered(LLAMA, execution=Execution("cuda_graph", tp=4)).tables


@pytest.mark.parametrize("launch", ["eager", "cuda_graph"])
def test_an_engine_has_one_kernel_for_norms_and_rotations_however_it_launches(launch):
    found = lowered(LLAMA, execution=Execution(launch, engine="vllm"))
    assert sum(total(found, "elementwise", "decode").values()) == 2 * 32  # rope and the gated activation of each layer


def test_what_an_engine_serves_takes_fewer_launches_and_less_energy():
    options = {"batch": 4, "prompt_tokens": 128, "generate_tokens": 16, "launch_mode": "cuda_graph"}
    plain = jc.predict(LLAMA, "h100", engine="pytorch", **options)
    served = jc.predict(LLAMA, "h100", engine="vllm", **options)
    assert served.launches < 0.75 * plain.launches
    assert sum(served.layers.values()) == pytest.approx(served.energy_j, rel=1e-9)
    assert served.layers["layers.*.attention.qkv_proj"] > 0


def test_turned_off_graphs_are_told():
    notes = jc.predict(LLAMA, "h100", batch=1, prompt_tokens=16, engine="vllm").notes
    assert any("CUDA graphs turned off" in note for note in notes)
