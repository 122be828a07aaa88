"""Triton kernels: spaces, limits, counts of the code against hand derivations, prices, correctness, ways out."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton", reason="needs joulecast[tune]", exc_type=ImportError)
torch = pytest.importorskip("torch", reason="needs joulecast[torch]", exc_type=ImportError)
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import joulecast as jc  # noqa: E402
import tuned_kernels  # noqa: E402
from joulecast.cli import main  # noqa: E402
from joulecast.errors import InfeasibleError, InputError  # noqa: E402
from joulecast.gpus import load_gpu  # noqa: E402
from joulecast.meters.device import DeniedError  # noqa: E402
from joulecast.meters.reading import MeterFacts, Reading  # noqa: E402
from joulecast.tuning.aot.asked import asked_of  # noqa: E402
from joulecast.tuning.aot.built import Built, Refused, build  # noqa: E402
from joulecast.tuning.aot.cache import Cache  # noqa: E402
from joulecast.tuning.aot.pool import Outcome, run_jobs  # noqa: E402
from joulecast.tuning.aot.sass import read_sass  # noqa: E402
from joulecast.tuning.aot.targets import limits_of  # noqa: E402
from joulecast.tuning.aot.ttir import read_ttir  # noqa: E402
from joulecast.tuning.correctness import _ended, interpreted, interpreted_all  # noqa: E402
from joulecast.tuning.exits.autotune import Race, Score, triton_autotune  # noqa: E402
from joulecast.tuning.exits.inductor import lookup_table  # noqa: E402
from joulecast.tuning.exits.operators import plan_for, torch_operator  # noqa: E402
from joulecast.tuning.exits.vllm import write_vllm  # noqa: E402
from joulecast.tuning.exits.winners import SCHEMA, add_winner, best_for, bucket_of, read_winners  # noqa: E402
from joulecast.tuning.interpreter import found as found_in  # noqa: E402
from joulecast.tuning.kernel import tune_kernel  # noqa: E402
from joulecast.tuning.kernelspec import INTERPRETS, Tensor  # noqa: E402
from joulecast.tuning.operators import NAMES, operator  # noqa: E402
from joulecast.tuning.operators.matmul import grouped_waves, rereads_of_tiles  # noqa: E402
from joulecast.tuning.operators.moe import routed  # noqa: E402
from joulecast.tuning.pricing import kernel_work, prices  # noqa: E402
from joulecast.tuning.user_kernel import imported, kernel_spec  # noqa: E402

TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 4, "num_warps": 4, "num_stages": 3}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    return folder / "cache.sqlite"


@pytest.fixture(scope="module")
def product(cache):
    """A matrix product on an H100: a tile that can be launched, and one too large for its shared memory."""
    spec = operator("matmul", m=1024, n=512, k=640)
    large = {**TILE, "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 128, "num_warps": 8, "num_stages": 5}
    found, report = build(
        spec, limits_of(load_gpu("h100")), [TILE, large], cache=Cache(cache), workers=1, timeout_s=600
    )
    return spec, found, report


# Limits


def test_occupancy_follows_from_registers_warps_and_shared_memory():
    limits = limits_of(load_gpu("h100"))
    # 64 warps an SM; 65,536 registers: 128 a thread x 32 x 8 warps = 32,768 a block, two blocks
    assert limits.occupancy(8, 128, 0) == 2
    # 228 KiB an SM, each block 98,304 + 1,024 bytes: two
    assert limits.occupancy(4, 32, 98304) == 2
    assert limits.occupancy(4, 32, 0) == 16
    assert limits.occupancy(1, 16, 0) == 32


def test_a_tile_too_large_for_the_target_is_refused_with_the_numbers():
    # (128 + 128) x 128 x 2 bytes x 4 stages in flight = 256 KiB
    assert limits_of(load_gpu("h100")).refusal(8, 262144) == (
        "needs 256 KiB of shared memory a block, H100-SXM-80GB has 227"
    )
    assert "99" in limits_of(load_gpu("rtx 4090")).refusal(8, 110_000)
    assert "registers" in limits_of(load_gpu("h100")).refusal(16, 0, 255)


def test_gpus_that_triton_does_not_compile_for_are_refused():
    for name in ("v100", "mi300x"):
        with pytest.raises(InputError, match="compute capability"):
            limits_of(load_gpu(name))


# Counts


def test_the_code_of_a_product_runs_what_the_product_asks_for(product):
    _, (one, large), report = product
    assert isinstance(large, Refused)
    assert large.stage == "prune"
    assert report.compiled == 1
    assert isinstance(one, Built)
    # 16 x 8 tiles of 64 x 64, and 640 / 32 steps
    assert one.blocks == 128
    assert one.asked.trips == pytest.approx([20.0])
    assert one.asked.tensor_flop == pytest.approx(2.0 * 1024 * 512 * 640)
    # each tile reads 64 x 640 of both operands at 2 bytes
    assert sum(one.asked.read_bytes.values()) == pytest.approx(128 * 2 * 64 * 640 * 2)
    assert one.asked.written_bytes["c"] == pytest.approx(1024 * 512 * 2)
    # machine code: loop bodies times trips give the same
    code = one.dynamic.counts
    assert code.matrix_flop * 4 * 128 == pytest.approx(one.asked.tensor_flop)
    assert one.dynamic.in_loops.async_copy_bytes * 32 * 4 * 128 == pytest.approx(sum(one.asked.read_bytes.values()))
    assert 16 <= one.compiled.code.registers <= 255
    assert code.spills == 0


def test_a_second_build_compiles_nothing(product, cache):
    spec, (one, _), _ = product
    found, report = build(spec, limits_of(load_gpu("h100")), [TILE], cache=Cache(cache), workers=1, timeout_s=600)
    assert (report.compiled, report.cached) == (0, 1)
    assert found[0].dynamic.counts == one.dynamic.counts
    assert found[0].asked == one.asked
    # the same code for other sizes of the same divisibility is not compiled again either
    wide = operator("matmul", m=2048, n=512, k=640)
    found, report = build(wide, limits_of(load_gpu("h100")), [TILE], cache=Cache(cache), workers=1, timeout_s=600)
    assert (report.compiled, report.cached) == (0, 1)
    assert found[0].asked.tensor_flop == pytest.approx(2.0 * 2048 * 512 * 640)


@pytest.mark.parametrize("held", ["{broken", "[]", '{"shared": 3}', '{"failure": 1, "timeout_s": "x"}'])
def test_what_is_damaged_in_the_cache_is_compiled_again(tmp_path, held):
    with Cache(tmp_path / "c.sqlite")._base as base:
        base.execute("INSERT INTO compiled VALUES ('k', ?)", (held,))
    assert Cache(tmp_path / "c.sqlite").find("k") is None


LOOPS = """
module {
  tt.func public @k(%x: !tt.ptr<f32>, %n: i32, %m: i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c8 = arith.constant 8 : i32
    %pid = tt.get_program_id x : i32
    %top = arith.addi %pid, %c1 : i32
    %r = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
    scf.for %i = %c0 to %top step %c1  : i32 {
      scf.for %j = %c0 to %n step %c8  : i32 {
        %left = arith.subi %n, %j : i32
        %lefts = tt.splat %left : i32 -> tensor<8xi32>
        %mask = arith.cmpi slt, %r, %lefts : tensor<8xi32>
        %xs = tt.splat %x : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>>
        %at = tt.addptr %xs, %r : tensor<8x!tt.ptr<f32>>, tensor<8xi32>
        %v = tt.load %at, %mask : tensor<8x!tt.ptr<f32>>
        %e = math.exp %v : tensor<8xf32>
      }
    }
    tt.return
  }
}
"""


def test_trips_of_nested_loops_follow_from_the_arguments_and_the_block():
    asked = asked_of(read_ttir(LOOPS), {"n": 20, "m": 3}, (4,))
    # blocks 0..3 run the outer loop 1..4 times: 2.5 on average; the inner ceil(20 / 8) = 3 times each
    assert asked.trips == pytest.approx([2.5, 7.5])
    assert asked.loop_parents == [-1, 0]
    # 4 blocks x 7.5 x 8 numbers of 4 bytes (masks are those of the first iteration)
    assert asked.read_bytes["x"] == pytest.approx(4 * 7.5 * 8 * 4)
    assert asked.special == pytest.approx(4 * 7.5 * 8)
    assert asked.unknown == 0


def test_loops_of_machine_code_are_found_by_their_backward_branches():
    text = """
        /*0000*/ S2R R1, SR_TID.X ;
        /*0010*/ LDG.E.128 R4, [R2] ;
        /*0020*/ LDGSTS.E.BYPASS.128 [R3], desc[UR16][R8.64] ;
        /*0030*/ HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0040*/ @P0 BRA 0x20 ;
        /*0050*/ STL [R1], R2 ;
        /*0060*/ @!P1 BRA 0x10 ;
        /*0070*/ EXIT ;
        /*0080*/ BRA 0x80 ;
    """
    code = read_sass(text, "Function k:\n REG:40 STACK:16 SHARED:0")
    assert (code.registers, code.stack) == (40, 16)
    assert [(loop.first, loop.last, loop.parent) for loop in code.loops] == [(0x10, 0x60, -1), (0x20, 0x40, 0)]
    outer, inner = (loop.own for loop in code.loops)
    assert (outer.global_load_bytes, outer.spill_bytes, outer.instructions) == (16, 4, 3)
    # 16 x 8 x 16 multiply-adds
    assert (inner.matrix_flop, inner.async_copy_bytes) == (4096, 16)


def test_waves_share_rows_and_columns():
    # 4 x 4 tiles, all at once: each row and column is read once
    assert grouped_waves(4, 4, 4, 16) == (4, 4)
    # one at a time: each tile reads its own
    assert grouped_waves(4, 4, 4, 1) == (16, 16)
    # four at a time down a column: all rows in each of four waves
    assert grouped_waves(4, 4, 4, 4) == (16, 4)
    assert rereads_of_tiles(256, 256, 64, 2.0, (64, 64, 4), 4) == 3 * 256 * 64 * 2


# Processes


def _job(what):
    if what == "spin":
        while True:
            pass
    if what == "child":
        subprocess.run([sys.executable, "-c", "while True: pass"], check=False)
    if what == "wait":
        time.sleep(60)
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "crash":
        faulthandler.disable()
        os.kill(os.getpid(), signal.SIGABRT)
    if what == "fail":
        raise ValueError("as asked")
    if what == "grow":
        return len(bytearray(2**31))
    return what * 2


def test_jobs_that_hang_die_or_fail_take_nobody_with_them():
    jobs = ["spin", 1, "die", 2, "fail", 3, "grow", "child"]
    found = {one.place: one for one in run_jobs(_job, jobs, workers=3, timeout_s=0.5, memory_gib=1.0)}
    assert sorted(found) == list(range(8))
    assert [found[place].value for place in (1, 3, 5)] == [2, 4, 6]
    for late in (0, 7):
        assert found[late].failure == "took more than 0.5 s of processor time"
        assert found[late].late == "processor"
        assert 0.5 <= found[late].seconds < 3.0
    assert found[2].failure == "the process ended with signal SIGKILL"
    assert found[4].failure == "ValueError: as asked"
    assert found[6].failure == "needs more than 1 GiB of memory"
    # a process that was killed says nothing of its job; a compiler that aborts does so again
    assert [place for place in found if found[place].lost] == [2]
    (one,) = run_jobs(_job, ["crash"], timeout_s=5.0)
    assert one.failure == "the process ended with signal SIGABRT"
    assert not one.lost


def test_a_job_that_waits_for_a_processor_is_not_late_and_one_that_waits_for_nothing_is(monkeypatch):
    # five busy processes on a processor or two take longer than the limit, and none more of a processor than its own
    found = list(run_jobs(_busy, [0.1] * 5, workers=5, timeout_s=0.25))
    assert [one.failure for one in found] == [""] * 5
    monkeypatch.setattr("joulecast.tuning.aot.pool.WALL_OVER_PROCESSOR", 2.0)
    (one,) = run_jobs(_job, ["wait"], timeout_s=0.2)
    assert one.late == "wall"
    assert one.failure == "took more than 0.4 s, 0 s of them on a processor"


def _busy(seconds):
    begun = time.process_time()
    while time.process_time() - begun < seconds:
        pass
    return seconds


def test_time_outs_are_kept_with_the_limit_that_they_exceeded(product, tmp_path, monkeypatch):
    spec, _, _ = product
    limits, tried = limits_of(load_gpu("h100")), []

    def late(work, jobs, *, workers, timeout_s):
        if jobs:
            tried.append(timeout_s)
            kind = "wall" if timeout_s == 9.0 else "processor"
            yield Outcome(0, None, f"took more than {timeout_s:.0f} s", timeout_s, kind)

    monkeypatch.setattr("joulecast.tuning.aot.built.run_jobs", late)
    kept = Cache(tmp_path / "c.sqlite")
    for timeout_s, runs in ((5.0, 1), (5.0, 1), (3.0, 1), (9.0, 2), (9.0, 3), (10.0, 4), (10.0, 4)):
        (one,), _report = build(spec, limits, [TILE], cache=kept, workers=1, timeout_s=timeout_s)
        assert one.reason.startswith("compiler: took more than")
        assert len(tried) == runs, timeout_s  # the time of day says nothing of the kernel: tried again


@pytest.mark.parametrize(("lost", "runs"), [(True, 2), (False, 1)])
def test_what_a_killed_process_left_undone_is_tried_again(product, tmp_path, monkeypatch, lost, runs):
    spec, _, _ = product
    tried = []

    def ended(work, jobs, *, workers, timeout_s):
        if jobs:
            tried.append(len(jobs))
            yield Outcome(0, None, "the process ended with a signal", 1.0, lost=lost)

    monkeypatch.setattr("joulecast.tuning.aot.built.run_jobs", ended)
    kept = Cache(tmp_path / "c.sqlite")
    for _ in range(2):
        build(spec, limits_of(load_gpu("h100")), [TILE], cache=kept, workers=1)
    assert len(tried) == runs


# Prices


def test_a_price_lies_within_what_the_gpu_can_do(product):
    spec, (one, _), _ = product
    gpu = load_gpu("h100")
    found = prices(spec, gpu, [one])
    work = kernel_work(spec, gpu, [one])
    assert found.time_s[0] > one.asked.tensor_flop / (gpu.tensor_tflops["fp16"] * 1e12 * gpu.clock_max_mhz / 1830)
    assert gpu.idle_w < found.power_w[0] <= gpu.power_limit_default_w
    assert found.energy_j[0] == pytest.approx(found.time_s[0] * found.power_w[0])
    # 128 blocks on 132 SMs
    assert work.waves[0] == 1
    assert work.fill[0] == pytest.approx(128 / 132)
    # operands and result fit L2: run again and again they are not in DRAM's way; streamed they are
    assert found.dram_bytes[0] < 0.05 * (1024 * 640 + 512 * 640) * 2
    streamed = prices(spec, gpu, [one], residency="stream")
    assert streamed.dram_bytes[0] >= (1024 * 640 + 512 * 640) * 2
    assert streamed.time_s[0] >= found.time_s[0]


def test_a_slower_clock_is_slower_and_takes_less_power(product):
    spec, (one, _), _ = product
    fast, slow = (prices(spec, load_gpu("h100"), [one], clock_mhz=clock) for clock in (1980, 1200))
    assert slow.time_s[0] > fast.time_s[0]
    assert slow.power_w[0] < fast.power_w[0]


# Operators and correctness


def test_every_operator_computes_what_torch_does():
    specs = [operator(name) for name in NAMES]
    specs += [operator("attention_prefill", causal=False, tokens=100), operator("softmax", columns=300)]
    ways = [[spec.baseline] for spec in specs]
    ways[3] = [{"BLOCK": 1024, "ROWS": 2, "WHOLE": 0, "num_warps": 4, "num_stages": 1}]  # piece by piece
    assert [found[0] for found in interpreted_all(list(zip(specs, ways, strict=True)))] == [""] * len(specs)


def test_a_wrong_kernel_is_found_out():
    spec = tuned_kernels.spec()
    wrong = replace(spec, reference=lambda given: {"y": 2.1 * given["x"]})
    configs = [dict(spec.baseline), {"BLOCK": 256, "num_warps": 1}]
    right, off = interpreted_all([(spec, configs), (wrong, configs)])
    assert right == ["", ""]
    assert all(one.startswith("y is off by 0.04") for one in off)


STUCK = {"BLOCK": 128, "num_warps": 1}

#: After 5 s of processor time, or 100 s on a machine that others use.
TOO_LATE = [f"took more than {most} in the test against the reference" for most in ("5 s of processor time", "100 s")]


def test_a_kernel_that_never_ends_is_told_with_its_limit_and_the_others_are_tested():
    spec = tuned_kernels.stuck_spec()
    late, right = interpreted(spec, [{"STUCK": 1, **STUCK}, {"STUCK": 0, **STUCK}], timeout_s=5)
    assert late in TOO_LATE
    assert right == ""


def test_a_test_that_waits_forever_and_one_that_crashes_are_told():
    assert _ended(-signal.SIGALRM, 2.0) == "took more than 40 s in the test against the reference"
    assert _ended(-signal.SIGSEGV, 2.0) == "ends the interpreter with signal SIGSEGV"
    assert _ended(3, 2.0) == "ends the interpreter with exit code 3"


@pytest.mark.parametrize("check", ["winners", "all"])
def test_the_search_goes_on_without_what_never_ends(check, cache):
    found = tune_kernel(
        tuned_kernels.stuck_spec(), "a100", check=check, cache=cache, workers=1, timeout_s=5, objective="time"
    )
    assert found.chosen["STUCK"] == 0
    wrong = [reason for reason in found.failed if reason.startswith("correctness")]
    assert all(reason.removeprefix("correctness: ") in TOO_LATE for reason in wrong)
    assert wrong or check == "winners"


def test_where_nothing_ends_the_search_does_in_a_line(cache, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    flags = ["--timeout", "5", "--cache", str(cache), "--workers", "1"]
    assert main(["tune", "tuned_kernels:always_stuck", "--gpu", "a100", *flags]) == 2
    said = capsys.readouterr().err
    assert "stuck could not be tested: each took more than" in said
    assert "check none tests nothing" in said


def test_everything_is_tested_where_all_is_asked_for(cache):
    spec = replace(tuned_kernels.spec(), reference=lambda given: {"y": 2.1 * given["x"]})
    with pytest.raises(InfeasibleError, match="no configuration of double is right: y is off by"):
        tune_kernel(spec, "a100", check="all", cache=cache, workers=1, timeout_s=60)


@pytest.mark.parametrize(
    ("flags", "verdict", "search"),
    [
        (["--objective", "time"], "the fastest of 4 that can be launched", "prediction: 4 predicted, none measured"),
        (["--slack", "9"], "", "prediction, slack 900.0%: 4 predicted, 4 within the slack, none measured"),
    ],
)
def test_a_prediction_says_that_nothing_was_measured(flags, verdict, search, cache, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    asked = ["tune", "tuned_kernels:spec", "--gpu", "a100", "--cache", str(cache), "--workers", "1"]
    assert main([*asked, "--check", "none", *flags]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert f"predicted, not measured: {verdict}" in page
    assert f"search {search}" in page
    assert "readings" not in page
    assert "timed" not in page


def test_tokens_are_routed_into_whole_tiles():
    pairs, owners = routed(tokens=5, experts=3, top_k=2, tile=4)
    # 10 pairs over 3 experts: 4, 3, 3, each padded to 4
    assert len(pairs) == 12
    assert owners.tolist() == [0, 1, 2]
    assert sorted(pairs[pairs < 10].tolist()) == list(range(10))
    assert all(pair % 3 == owners[place // 4] for place, pair in enumerate(pairs.tolist()) if pair < 10)


@pytest.mark.parametrize(
    ("name", "sizes", "says"),
    [
        ("matmull", {}, "did you mean matmul"),
        ("matmul", {"q": 1}, "unknown size of matmul"),
        ("matmul", {"m": 0}, "at least 1"),
        ("matmul", {"m": 1.5}, "whole number"),
        ("matmul", {"dtype": "fp12"}, "unknown format"),
        ("attention_prefill", {"heads": 6, "key_heads": 4}, "can't share"),
        ("conv", {"kernel": 9, "height": 2, "padding": 0}, "does not fit"),
        ("fused_moe", {"experts": 2, "top_k": 3}, "can't have"),
    ],
)
def test_sizes_that_make_no_sense_are_refused_in_a_line(name, sizes, says):
    with pytest.raises(InputError, match=says) as told:
        operator(name, **sizes)
    assert "\n" not in str(told.value)


# Kernels of the user's own


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"space": {"BLOK": [1]}}, "BLOK is no tl.constexpr"),
        ({"space": {"num_warps": [2]}}, "BLOCK a place in the space"),
        ({"space": {"BLOCK": [128], "num_warps": [3]}}, "powers of two"),
        ({"args": {"x": ((8,), "fp32"), "y": ((8,), "fp32")}}, "give a value for n"),
        ({"args": {"x": ((8,), "fp32"), "y": ((8,), "fp32"), "n": 8, "q": 1}}, "q is no parameter"),
        ({"args": {"x": ((8,), "fp33"), "y": ((8,), "fp32"), "n": 8}}, "no tensor of"),
        ({"args": {"x": "a", "y": ((8,), "fp32"), "n": 8}}, "must be a tensor"),
        ({"outputs": ["z"]}, "output z"),
        ({"outputs": []}, "name the tensors"),
        ({"grid": lambda config: config["none"]}, "grid can't be computed"),
        ({"grid": 3}, "a function of the configuration or a tuple"),
        ({"kernel": len}, "must be a function under @triton.jit"),
    ],
)
def test_a_spec_that_does_not_fit_is_refused_in_a_line(changes, says):
    given = {
        "kernel": tuned_kernels.double, "space": {"BLOCK": [128]}, "grid": lambda _: (1,), "outputs": ["y"],
        "args": {"x": ((8,), "fp32"), "y": ((8,), "fp32"), "n": 8}, "reference": lambda given: {"y": given["x"]},
    } | changes  # fmt: skip
    with pytest.raises(InputError, match=says) as told:
        kernel_spec(given.pop("kernel"), **given)
    assert "\n" not in str(told.value)


def test_a_script_that_tunes_as_it_runs_is_tested_without_running_all_of_it_again(monkeypatch, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import joulecast as jc\n"
        "def double(x): return 2 * x\n"
        "spec = jc.kernel_spec(double, space={'BLOCK': [1]}, args={}, grid=(1,))\n"
        "jc.tune(spec, gpu='a100')\n"
    )
    monkeypatch.setenv(INTERPRETS, "1")
    with pytest.raises(InputError, match="put the call under if __name__ == '__main__'"):
        jc.tune("matmul", gpu="a100")
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert found_in("__main__", str(script), "double", sys.path)(3) == 6
    script.with_name("other.py").write_text("raise ValueError('before anything is defined')\n")
    with pytest.raises(ValueError, match="before anything"):
        found_in("__main__", str(script.with_name("other.py")), "double", sys.path)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("no.such.module:spec", "can't import"), ("tuned_kernels:nothing", "has no nothing"),
        ("tuned_kernels:not_a_spec", "is no kernel spec"), ("tuned_kernels:broken", "no such luck"),
        (":x", "is module:attribute"), ("a b:c", "is module:attribute"),
    ],
)  # fmt: skip
def test_what_can_not_be_imported_is_refused_in_a_line(where, says):
    with pytest.raises(InputError, match=says):
        imported(where)


def test_a_space_that_its_constraints_leave_empty_is_told():
    with pytest.raises(InputError, match="no configuration fulfils the constraints"):
        kernel_spec(tuned_kernels.double, space={"BLOCK": [128]}, constraints=["BLOCK > 128"],
                    args={"x": ((8,), "fp32"), "y": ((8,), "fp32"), "n": 8}, grid=(1,))  # fmt: skip


def test_tensors_of_torch_are_taken_for_their_shape():
    spec = kernel_spec(
        tuned_kernels.double, space={"BLOCK": [128]}, grid=(8,),
        args={"x": torch.zeros(1000, dtype=torch.bfloat16, device="meta"), "y": ((1000,), torch.float32), "n": 1000},
    )  # fmt: skip
    assert spec.arguments_of({})["x"] == Tensor((1000,), "bf16")
    assert spec.dtype == "bf16"


def test_a_kernel_of_ones_own_is_tuned_from_the_command_line(cache, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(Path(__file__).parent)
    winners = tmp_path / "winners.json"
    flags = [
        "tuned_kernels:spec",
        "--gpu",
        "a100",
        "--cache",
        str(cache),
        "--workers",
        "1",
        "--timeout",
        "600",
        "--json",
    ]
    assert main(["tune", *flags, "--configs", "1", "--check", "none", "--winners", str(winners)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["measured"] is False
    assert told["verdict"].startswith("predicted, not measured")
    assert set(told["chosen"]) == {"BLOCK", "num_warps"}
    assert told["saving"] is None
    held = json.loads(winners.read_text())
    assert held["schema"] == SCHEMA
    one = held["winners"][0]
    assert (one["operator"], one["dtype"], one["clock_policy"]) == ("double", "fp32", "driver")
    assert one["evidence"]["measured"] is False
    assert one["evidence"]["versions"]["triton"]


def test_nested_loops_of_a_kernel_are_counted(cache):
    spec = kernel_spec(
        tuned_kernels.sum_of_pieces, space={"BLOCK": [256], "num_warps": [2]}, grid=(1,), outputs=["y"],
        args={"x": ((5, 2048), "fp32"), "y": ((256,), "fp32"), "n": 2048, "pieces": 5},
    )  # fmt: skip
    (one,), _ = build(spec, limits_of(load_gpu("a100")), [spec.baseline], cache=Cache(cache), workers=1, timeout_s=600)
    assert one.asked.trips == pytest.approx([5.0, 40.0])
    assert one.asked.read_bytes["x"] == pytest.approx(5 * 2048 * 4)
    # the inner loop is unrolled by four, and what would be left over of it is counted though it does not run
    assert 1.0 <= one.dynamic.counts.global_load_bytes * 64 / (5 * 2048 * 4) < 1.5


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["matmul"], "--gpu says what to compile for"),
        (["matmul", "--gpu", "h100", "--meter", "nvml"], "no NVIDIA GPU here"),
        (["matmul", "--gpu", "h100", "--meter", "ammeter"], "--meter takes one of"),
        (["matmul", "--gpu", "h100", "--log", "x.db"], "nothing is timed or read with the model meter"),
        (["matmul", "--gpu", "h100", "--where", "a=1"], "is of recorded spaces"),
        (["tuned_kernels:spec", "--gpu", "h100", "--size", "m=1"], "--size is of built-in operators"),
        (["matmul", "--gpu", "h100", "--check", "most"], "--check takes one of"),
        (["matmul", "--gpu", "h100", "--winners", "/no/such/folder/w.json"], "no folder"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is said without a GPU")
def test_flags_that_can_not_be_used_are_refused_in_a_line(flags, says, capsys):
    assert main(["tune", *flags]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


# Ways out


@pytest.fixture(scope="module")
def found(product, cache):
    """A prediction for the product of `product`, its tile alone in the space."""
    spec = product[0]
    one = replace(spec, space=type(spec.space).of({name: [value] for name, value in TILE.items()}), default=TILE)
    return tune_kernel(one, "h100", cache=cache, workers=1, check="none", residency="stream", timeout_s=600)


def test_a_prediction_says_that_it_is_one(found):
    assert found.chosen == TILE
    assert found.verdict.startswith("predicted, not measured")
    assert found.saving is None
    assert found.facts.name == "model"
    assert found.energy_readings == 0


def test_winners_are_found_by_sizes_like_theirs(found, tmp_path):
    file = tmp_path / "w.json"
    add_winner(file, found)
    add_winner(file, found)
    held = read_winners(file)
    assert len(held) == 1
    assert held[0].bucket == "k=1024,m=1024,n=512"
    sizes = {"m": 1000, "n": 512, "k": 700}
    assert bucket_of(sizes) == held[0].bucket
    assert best_for(held, "matmul", sizes, "fp16", "NVIDIA H100 80GB HBM3") == held[0]
    assert best_for(held, "matmul", {"m": 500, "n": 500, "k": 640}, "fp16", "h100") == held[0]
    for other in ({"m": 16, "n": 512, "k": 640}, {"m": 1000, "n": 512}):
        assert best_for(held, "matmul", other, "fp16", "h100") is None
    assert best_for(held, "matmul", sizes, "bf16", "h100") is None
    assert best_for(held, "matmul", sizes, "fp16", "a100") is None
    assert best_for(held, "matmul", sizes, "fp16", "h100", "1200 MHz") is None


def test_a_prediction_never_takes_the_place_of_a_measurement(found, tmp_path):
    file = tmp_path / "w.json"
    add_winner(file, replace(found, facts=MeterFacts("nvml", "H100-SXM-80GB", "energy counter")))
    with pytest.raises(InputError, match="holds a measured winner"):
        add_winner(file, found)


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "joulecast.winners/1", "winners": [{}]}', '{"schema": "x"}'])
def test_a_file_that_holds_no_winners_is_refused(text, tmp_path):
    (tmp_path / "w.json").write_text(text)
    with pytest.raises(InputError):
        read_winners(tmp_path / "w.json")


def test_an_operator_takes_the_winner_and_falls_back(found, tmp_path):
    file = tmp_path / "w.json"
    add_winner(file, found)
    held = read_winners(file)
    sizes = {"m": 1024, "n": 512, "k": 640}
    plan = plan_for("matmul", sizes, "fp16", "NVIDIA H100 80GB HBM3", held)
    assert (plan.source, plan.config) == ("winner", TILE)
    away = plan_for("matmul", sizes, "fp16", "NVIDIA A100-SXM4-80GB", held)
    assert away.source == "no winner of such sizes"
    assert away.config == away.spec.baseline
    stale = [replace(held[0], evidence={**held[0].evidence, "source_hash": "0"})]
    assert "another source" in plan_for("matmul", sizes, "fp16", "h100", stale).source
    matmul = torch_operator("matmul", file, namespace="joulecast_test")
    x, w = torch.randn(2, 3, 8), torch.randn(5, 8)
    assert torch.allclose(matmul(x, w), x @ w.t(), atol=1e-5)
    assert torch.ops.joulecast_test.matmul(x.to("meta"), w.to("meta")).shape == (2, 3, 5)
    with pytest.raises(InputError, match="operator for torch"):
        torch_operator("conv", file)


def test_the_table_of_inductor_has_the_key_that_it_makes_of_such_inputs(found, tmp_path):
    file = tmp_path / "w.json"
    add_winner(file, found)
    x, w = torch.empty(1024, 640, dtype=torch.float16), torch.empty(512, 640, dtype=torch.float16).t()
    nodes = tuple((one.dtype, list(one.shape), list(one.stride())) for one in (x, w))
    name = "NVIDIA H100 80GB HBM3"
    table = lookup_table(file, name)
    assert list(table) == [f"{name}+{nodes}+mm"]
    (entry,) = table[f"{name}+{nodes}+mm"]
    assert entry == {"template_id": "triton::mm", "EVEN_K": 640 % TILE["BLOCK_K"] == 0, "USE_FAST_ACCUM": False,
                     "ACC_TYPE": "tl.float32", **TILE}  # fmt: skip


def test_moe_winners_take_the_form_that_vllm_reads(found, tmp_path):
    tile = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4,
            "num_stages": 3}  # fmt: skip
    file = tmp_path / "w.json"
    for tokens in (64, 1, 8):
        problem = {"tokens": tokens, "hidden": 4096, "inter": 28672, "experts": 8, "top_k": 2, "dtype": "fp16"}
        point = replace(found.points[0], config=tile)
        question = {**found.question, "kernel": "fused_moe", "problem": problem}
        add_winner(file, replace(found, question=question, chosen=tile, baseline=tile, points=(point,)))
    (path,) = write_vllm(file, tmp_path, device_name="NVIDIA H100 80GB HBM3")
    assert path.name == "E=8,N=14336,device_name=NVIDIA_H100_80GB_HBM3.json"
    held = json.loads(path.read_text())
    assert [name for name in held if name.isdigit()] == ["1", "8", "64"]
    assert held["8"] == tile
    (tmp_path / "bad").mkdir()
    with pytest.raises(InputError, match="no folder"):
        write_vllm(file, tmp_path / "nowhere")


def test_scores_compare_by_the_outcome_of_the_whole_race():
    race = Race("energy", slack=0.02, close=0.01)
    early = Score.of(race, 1.00e-3, 0.4)  # of little energy, and the fastest so far
    late = Score.of(race, 0.90e-3, 0.6)
    near = Score.of(race, 0.91e-3, 0.597)  # can't be told from the one before, which is faster
    assert race.winner() is late
    assert min([early, late, near]) is late
    assert late < early
    assert late < near
    assert min([float("inf"), late]) is late
    assert min({"a": [early] * 3, "b": [late] * 3, "c": [float("inf")] * 3}.items(), key=lambda one: one[1])[0] == "b"


class Driver:
    """A CUDA driver that launches nothing."""

    utils = launcher_cls = None

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, _device):
        return 0

    def get_active_torch_device(self):
        return torch.device("cpu")


def test_triton_chooses_by_energy_within_the_slack(monkeypatch):
    import triton
    from triton.runtime.jit import JITFunction

    # by block: time [s], power [W]
    truth = {64: (1.00e-3, 600.0), 128: (1.01e-3, 400.0), 256: (2.0e-3, 100.0)}
    now = [0.0, 0.0]

    def run(self, *args, grid, warmup, **options):
        now[:] = truth[options["BLOCK"]]

    class Meter:
        facts = MeterFacts("test", "a GPU", "scripted", 700.0, 50.0)

        def prepare(self, load):
            load.run(1)

        def read(self, load):
            load.run(load.launches_of(2))
            return Reading(now[0] * now[1], now[0], now[0])

    def timer(call):
        call()
        return now[0]

    before = triton.runtime.driver._active
    triton.runtime.driver.set_active(Driver())
    monkeypatch.setattr(JITFunction, "run", run)
    try:
        x = torch.zeros(512)
        chosen = {}
        monkeypatch.setenv(
            "TRITON_CACHE_AUTOTUNING", "1"
        )  # times and energies of one kernel would take each other's place
        for name, given in (
            ("energy", {}),
            ("time", {"objective": "time"}),
            ("wide", {"slack": 1.5}),
            ("as for Triton", {"warmup": 25, "rep": 100, "use_cuda_graph": True}),
        ):
            configs = [triton.Config({"BLOCK": block}) for block in truth]
            tuned = triton_autotune(configs, key=["n"], meter=Meter(), timer=timer, **given)(tuned_kernels.double)
            tuned[(1,)](x, x, 512)
            chosen[name] = tuned.best_config.kwargs["BLOCK"]
        assert chosen == {"energy": 128, "time": 64, "wide": 256, "as for Triton": 128}
    finally:
        triton.runtime.driver._active = before


def test_no_two_calls_have_the_name_of_one():
    from joulecast.tuning.exits.autotune import CallLoad

    # meters know kernels by name; the place in memory of one that is gone is that of the next
    assert len({CallLoad(lambda: None).name for _ in range(50)}) == 50


def test_readings_that_can_not_be_are_not_chosen_by(monkeypatch):
    from joulecast.errors import InfeasibleError
    from joulecast.tuning.exits.autotune import EnergyBench

    class Meter:
        facts = MeterFacts("test", "a GPU", "scripted", 450.0, 20.0)

        def prepare(self, load):
            pass

        def read(self, _load):
            return Reading(6.909e-3, 0.0118e-3)  # 586 W on a card of 450 W

    with pytest.raises(InfeasibleError, match="586 W"):
        EnergyBench(meter=Meter(), timer=lambda _: 0.0118e-3)(lambda: None)


def test_autotune_refuses_what_it_can_not_use():
    with pytest.raises(InputError, match="energy or time"):
        triton_autotune([], key=[], objective="joy")
    with pytest.raises(InputError, match="cache_results keeps no energies"):
        triton_autotune([], key=[], cache_results=True)
    with pytest.raises(InputError, match="its own do_bench"):
        triton_autotune([], key=[], do_bench=len)
    with pytest.raises(InputError, match="does not take these options"):
        triton_autotune([], key=[], no_such_option=1)


def test_tune_takes_kernels(cache):
    assert jc.tune.__name__ == "tune"
    with pytest.raises(InputError, match="gpu='h100'"):
        jc.tune("matmul")
    with pytest.raises(InputError, match="needs space="):
        jc.tune(tuned_kernels.double, gpu="h100")
    with pytest.raises(InputError, match="log is of a search that measures"):
        jc.tune("matmul", gpu="h100", log="x.db")
    found = jc.tune(
        tuned_kernels.double, {"BLOCK": [128], "num_warps": [1]}, gpu="a100", grid=(8,), cache=cache, workers=1,
        timeout_s=600, check="none", args={"x": ((1000,), "fp32"), "y": ((1000,), "fp32"), "n": 1000}, outputs=["y"],
    )  # fmt: skip
    # 8 kB in and out and nothing else: what it costs to start a kernel bounds it
    assert found.chosen == {"BLOCK": 128, "num_warps": 1}
    assert 1e-6 < found.points[0].time_s < 1e-5
    assert np.isfinite(found.points[0].energy_j)


def test_interpreting_without_a_reference_says_nothing():
    spec = replace(operator("softmax", rows=8, columns=64), reference=None, small=None)
    assert interpreted(spec, [spec.baseline]) == [None]


# A GPU that is simulated


@pytest.fixture
def simulated(monkeypatch, tmp_path):
    """A search with the nvml meter on a simulated GPU, whose kernels draw power by their number of warps."""
    from joulecast.meters import nvml
    from joulecast.meters.simulated import SimulatedDevice, SimulatedLoad
    from joulecast.meters.window import WindowMeter
    from joulecast.tuning import gpu_load

    gpu = SimulatedDevice()

    class Load(SimulatedLoad):
        def __init__(self, spec, config, _torch):
            warps = config["num_warps"]
            super().__init__(gpu, f"{spec.name} {config}", 1e-3 * (1.0 + 0.01 * warps), 240.0 - 20.0 * warps)

        def times_s(self, count):
            return [self.run(200) / 200 for _ in range(count)]

    monkeypatch.setattr(gpu_load, "GraphLoad", Load)
    monkeypatch.setattr(gpu_load, "need_gpu", lambda: torch)
    monkeypatch.setattr(gpu_load, "right_on_gpu", lambda *_: "")
    monkeypatch.setattr(nvml, "cuda_device", lambda _: gpu)
    monkeypatch.setattr(nvml, "nvml_meter", WindowMeter)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return gpu


CLOCKED = ["tune", "tuned_kernels:spec", "--gpu", "a100", "--meter", "nvml", "--workers", "1", "--timeout", "600"]


def test_clocks_and_limits_are_searched_on_a_gpu_and_put_back(simulated, cache, tmp_path, capsys):
    winners = tmp_path / "winners.json"
    flags = [
        "--clocks",
        "1200,1500,1800",
        "--slack",
        "0.25",
        "--winners",
        str(winners),
        "--cache",
        str(cache),
        "--json",
    ]
    assert main([*CLOCKED, *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    # two warps draw 200 W at 1800 MHz: 50 + 150 x (1500 / 1800)^2.5 = 145 W at 1500 MHz for 1.2 times the time
    assert (found["chosen"]["num_warps"], found["chosen"]["core_clock_mhz"]) == (2, 1500)
    assert found["saving"]["estimate"] == pytest.approx(1 - 145 * 1.2 * 1.02 / 1.01 / 220, abs=0.02)
    assert found["question"]["clock_mhz"] == "by configuration"
    (winner,) = read_winners(winners)
    assert winner.clock_policy == "1500 MHz"
    assert "core_clock_mhz" not in winner.config
    assert (simulated.clock_mhz(), simulated.limit_w()) == (1800.0, 300.0)
    assert not list((tmp_path / "joulecast").glob("clocks-*.json"))
    assert main([*CLOCKED, "--power-limit", "200", "--cache", str(cache), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["question"]["power_limit_w"] == 200.0
    assert "power_limit_w" not in found["chosen"]
    assert simulated.limit_w() == 300.0


def test_a_missing_right_is_named_before_anything_is_compiled_or_measured(simulated, monkeypatch, tmp_path, capsys):
    simulated.failings = replace(simulated.failings, may_set=False)
    monkeypatch.setattr("joulecast.tuning.triton_evaluator.build", None)
    assert main([*CLOCKED, "--clocks", "1200,1500", "--cache", str(tmp_path / "c.sqlite")]) == 2
    assert "no right to lock the core clock of simulated GPU: run as root" in capsys.readouterr().err
    assert main([*CLOCKED, "--clocks", "1201", "--cache", str(tmp_path / "c.sqlite")]) == 2
    assert "no core clock of 1201 MHz: the nearest is 1200" in capsys.readouterr().err
    assert simulated.now_s() == 0.0


def test_a_right_that_is_lost_halfway_costs_no_result(simulated, cache, tmp_path, capsys):
    unlock = simulated.unlock_clock
    flags = [*CLOCKED, "--clocks", "1200,1800", "--cache", str(cache), "--json"]
    calls = []

    def while_allowed():
        calls.append(1)
        if len(calls) > 2:  # as rights are looked at, then no more
            raise DeniedError("no right to unlock the core clock of simulated GPU: run as root, or have it granted")
        unlock()

    simulated.unlock_clock = while_allowed
    assert main(flags) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["saving"]["readings"] > 0
    assert "clocks of simulated GPU are not put back: no right to unlock" in found["notes"][-1]
    (journal,) = (tmp_path / "joulecast").glob("clocks-*.json")
    held = json.loads(journal.read_text())
    journal.write_text(json.dumps({**held, "started": "1"}))  # as after the end of this process
    assert main([*CLOCKED, "--cache", str(cache)]) == 2  # one without clocks would measure at what was left, too
    assert "no right to unlock" in capsys.readouterr().err
    simulated.unlock_clock = unlock
    assert main([*CLOCKED, "--cache", str(cache), "--json"]) == 0
    assert simulated.clock_mhz() == 1800.0
    assert not journal.exists()
