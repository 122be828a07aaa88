"""The command line: pages at 80 columns, JSON, CSV, exit codes, and one line for whatever is wrong."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import subprocess
import sys

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import joulecast
from command_line import refused, run
from joulecast.cli import main
from joulecast.errors import InfeasibleError, InputError
from joulecast.physics.settled import BOUNDS
from joulecast.scenarios.prediction import MemoryNeed
from predictions import llama, phase

PROGRAM = "import sys; from joulecast.cli import main; sys.exit(main())"
MODEL = "meta-llama/Llama-3.1-8B"


class _Workload:
    name = MODEL


@pytest.fixture
def answers(monkeypatch):
    """The predictor replaced by answers made by hand; what it was asked is recorded."""
    asked = []

    def predict(workload, gpu, **options):
        asked.append((gpu, options))
        if gpu == "t4":
            raise InfeasibleError("does not fit by 2.7 GB; would fit: int8 weights, batch 2")
        names = {"h100": "H100-SXM-80GB", "rtx pro 6000": "RTX-PRO-6000-BLACKWELL"}
        return llama(gpu=names.get(gpu, gpu))

    def workload(source, **options):
        asked.append((source, options))
        return _Workload()

    monkeypatch.setattr(joulecast, "predict", predict, raising=False)
    monkeypatch.setattr(joulecast, "workload", workload, raising=False)
    return asked


def test_options_reach_the_predictor(capsys, answers):
    flags = "--batch 8 --prompt 2048 --generate 256 --dtype fp8 --weight-dtype int4 --kv-dtype fp8 --attn-dtype bf16"
    ways = "--attention eager --launch cuda-graph --tp 2 --pp 3 --ep 2 --clock 1410 --power-limit 500.5 --engine vllm"
    code, _, err = run(
        capsys,
        "predict",
        MODEL,
        "--gpu",
        "h100",
        *flags.split(),
        *ways.split(),
        *["--host-us-per-launch", "0", "--set", "sm_count=160", "--set", "dram_type=HBM4", "--ignore-memory"],
    )
    assert (code, err) == (0, "")
    assert answers == [
        (
            MODEL,
            {
                "batch": 8,
                "prompt_tokens": 2048,
                "generate_tokens": 256,
                "dtype": "fp8",
                "weight_dtype": "int4",
                "kv_cache_dtype": "fp8",
                "attn_dtype": "bf16",
            },
        ),
        (
            "h100",
            {
                "attention": "eager",
                "launch_mode": "cuda_graph",
                "engine": "vllm",
                "tp": 2,
                "pp": 3,
                "ep": 2,
                "clock_mhz": 1410.0,
                "power_limit_w": 500.5,
                "host_us_per_launch": 0.0,
                "changes": {"sm_count": 160.0, "dram_type": "HBM4"},
                "ignore_memory": True,
            },
        ),
    ]


def test_what_is_not_given_is_left_to_the_predictor(capsys, answers):
    run(capsys, "predict", MODEL, "--gpu", "h100")
    assert answers == [(MODEL, {}), ("h100", {})]


def test_the_page_shows_every_figure_within_80_columns(capsys, answers):
    code, out, _ = run(capsys, "predict", MODEL, "--gpu", "h100", "--price", "0.2", "--currency", "EUR")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out
    assert "…" not in out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert "500 ms ± 6 %  600 W ± 4 %   300 J ± 12 %" in out
    assert rows["total"] == [
        "total",
        "2.00",
        "s",
        "±",
        "8",
        "%",
        "450",
        "W",
        "±",
        "5",
        "%",
        "900",
        "J",
        "±",
        "10",
        "%",
        "1,020",
        "0.439",
    ]
    for part in (
        "gemm 80 %",
        "DRAM 33 %",
        "tensor core, cap",
        "1,755 MHz",
        "per M tokens  439 kJ",
        "at 0.200 EUR a kWh;",
        "0.0244 EUR a million tokens",
        "19.8 of 85.9 GB: fits",
    ):
        assert part in out
    assert "note            h100 means H100-SXM-80GB" in out


@pytest.mark.parametrize("bound", BOUNDS)
def test_long_names_and_warnings_stay_within_80_columns(capsys, answers, monkeypatch, bound):
    def predict(workload, gpu, **options):
        bound_by = f"{bound}, cap"
        return llama(
            gpu="RTX-PRO-6000-BLACKWELL",
            gpu_count=16,
            workload="sentence-transformers/paraphrase-multilingual-mpnet-base-v2",
            warnings=("a warning of many words " * 10,),
            memory=MemoryNeed(800.0, 100.0, 100.0, 1.0, 102.0),
            unpriced={"aten::some_operation_of_long_name": 0.03},
            bound_by=bound_by,
            phases=(phase("prefill", 3e6, 45_678.0, bound_by=bound_by, flop=4.567e16, idle_share=0.0001),),
            time_s=2e4,
            energy_j=9e7,
        )

    monkeypatch.setattr(joulecast, "predict", predict, raising=False)
    for gpus in ("h100", "h100,a100"):
        code, out, _ = run(capsys, "predict", MODEL, "--gpu", gpus, "--price", "0.2")
        assert code == 0
        assert max(map(len, out.splitlines())) <= 80, out
    assert "1,001 > 102.0\n" in out


def test_several_gpus_stand_side_by_side_and_one_failure_spoils_nothing(capsys, answers):
    code, out, err = run(capsys, "predict", MODEL, "--gpu", "h100,t4", "--gpu", "rtx pro 6000")
    assert (code, err) == (0, "")
    assert "T4                      no answer: does not fit by 2.7 GB; would fit: int8" in out
    assert out.count("439 kJ") == 2
    assert "fastest         H100-SXM-80GB" in out


def test_where_no_gpu_can_the_reason_is_one_line(capsys, answers):
    assert "would fit: int8 weights" in refused(capsys, "predict", MODEL, "--gpu", "t4")


def test_json_holds_figures_with_units_and_intervals(capsys, answers):
    code, out, _ = run(capsys, "predict", MODEL, "--gpu", "h100,t4", "--json", "--price", "0.2", "--kernels")
    document = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert code == 0
    assert document["schema"] == "joulecast.predict/1"
    first, second = document["predictions"]
    assert first["total"]["energy_j"] == 900.0
    assert first["total"]["energy_j_lower"] == pytest.approx(810.0)
    assert first["total"]["cost_per_million_tokens"] == pytest.approx(0.0244140625)
    assert [phase["phase"] for phase in first["phases"]] == ["prefill", "decode"]
    assert set(first["phases"][0]) == set(first["total"])
    assert sum(first["energy_by_family_j"].values()) == pytest.approx(first["total"]["energy_j"])
    assert [row["op"] for row in first["kernels"]] == ["gemm", "context_attention", "gemm"]
    assert second == {"gpu": "T4", "error": "does not fit by 2.7 GB; would fit: int8 weights, batch 2"}


def test_every_field_of_the_json_is_documented(capsys, answers, request):
    page = (request.config.rootpath / "docs" / "json.md").read_text(encoding="utf-8")
    _, out, _ = run(capsys, "predict", MODEL, "--gpu", "h100", "--json", "--price", "0.2", "--kernels")
    document = json.loads(out)
    found = document["predictions"][0]
    names = {*document, *found, *found["total"], *found["memory"], *found["kernels"][0]}
    bare = {name.removesuffix("_lower").removesuffix("_upper") for name in names}
    assert {name for name in bare if f"`{name}`" not in page} == set()


def test_csv_has_a_row_for_each_gpu_and_phase(capsys, answers):
    _, out, _ = run(capsys, "predict", MODEL, "--gpu", "h100,t4", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["gpu"], row["phase"]) for row in rows] == [
        ("H100-SXM-80GB", "prefill"),
        ("H100-SXM-80GB", "decode"),
        ("H100-SXM-80GB", "total"),
        ("T4", ""),
    ]
    assert float(rows[2]["energy_j"]) == 900.0
    assert rows[3]["error"].startswith("does not fit")


def test_the_launch_list_comes_as_page_and_as_csv(capsys, answers):
    _, page, _ = run(capsys, "predict", MODEL, "--gpu", "h100", "--kernels")
    assert "batch=8 q=2048 kv=2048 h=32/8 d=128" in page
    _, out, _ = run(capsys, "predict", MODEL, "--gpu", "h100", "--kernels", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["launches"] for row in rows] == ["32.0", "32.0", "8160.0"]
    assert {row["gpu"] for row in rows} == {"H100-SXM-80GB"}


@pytest.mark.parametrize("ending", ["json", "csv", "txt"])
def test_a_file_takes_the_format_of_its_ending(capsys, answers, tmp_path, ending):
    path = tmp_path / f"out.{ending}"
    code, out, _ = run(capsys, "predict", MODEL, "--gpu", "h100", "--output", str(path))
    assert (code, out) == (0, "")
    head = {"json": "{\n", "csv": "workload,gpu,", "txt": "Llama-3.1-8B · bf16"}[ending]
    assert path.read_text(encoding="utf-8").startswith(head)


@pytest.mark.parametrize("flag", ["--batch", "--prompt", "--image-size", "--tp", "--pp", "--ep"])
@pytest.mark.parametrize(
    "value", ["1e3", "nan", "inf", "-1", "0", "10**9", "8.0", "٣", "²", "", "1_000", "0x10", "1" * 99]
)
def test_a_count_is_plain_digits_above_zero(capsys, answers, flag, value):
    assert f"{flag} takes a whole number of 1 or more" in refused(
        capsys, "predict", MODEL, "--gpu", "h100", flag, value
    )
    assert answers == []


@pytest.mark.parametrize("flag", ["--clock", "--power-limit"])
@pytest.mark.parametrize("value", ["1e3", "nan", "inf", "-5", "0", "0.0", "٣", "300W", "", "1" * 400])
def test_a_quantity_is_a_plain_number_above_zero(capsys, answers, flag, value):
    assert f"{flag} takes a number above zero in" in refused(capsys, "predict", MODEL, "--gpu", "h100", flag, value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict"], "Missing option '--gpu'"),
        (["train"], "Missing argument"),
        (["predict", MODEL], "--gpu"),
        (["predict", MODEL, "--gpu", "h10"], "did you mean"),
        (["predict", MODEL, "--gpu", "h100,,a100"], "apart by commas"),
        (["predict", MODEL, "--gpu", "h100", "--bogus"], "--bogus"),
        (["predict", MODEL, "--gpu", "h100", "--set", "sm_count"], "field=value"),
        (["gpus", "show", "h100", "--set", "sm_count=١٦٠"], "sm_count must be a number"),
        (["gpus", "show", "h100", "--set", "sm_count=1_60"], "sm_count must be a number"),
        (["validate", "--sample", "many"], "--sample takes a whole number"),
        (["validate", "--kind", "gemm"], "--kind needs measurements"),
        (["predict", MODEL, "--gpu", "h100", "--set", "sm_count=1", "--set", "sm_count=2"], "twice"),
        (["predict", MODEL, "--gpu", "h100", "--launch", "lazy"], "eager, compiled, cuda_graph"),
        (["predict", MODEL, "--gpu", "h100", "--price", "free"], "money a kWh"),
        (["predict", MODEL, "--gpu", "h100", "--currency", "x" * 20], "short name"),
        (["predict", MODEL, "--gpu", "h100", "--json", "--csv"], "exclude each other"),
        (["predict", MODEL, "--gpu", "h100", "--output", "answer.pdf"], ".json, .csv or .txt"),
        (["predict", MODEL, "--gpu", "h100", "--top", "-3"], "--top"),
        (["gpus", "show", "h101"], "did you mean"),
        (["gpus", "show", "h100", "--set", "dram_gb_s=3.352"], "TB/s"),
        (["kernels", "gemm", "--gpu", "h200", "--set", "m=0"], "m"),
        (["kernels", "gemm", "--gpu", "h200", "--columns", "no-such.csv"], "no such file"),
        (["kernels", "gemm", "--gpu", "h200", "--set", "m="], "m=1,512"),
        (["kernels", "gemm", "--gpu", "h200", "--columns", os.devnull], "not a regular file"),
        (["models", "no such model at all"], "unknown model"),
        (["bogus"], "No such command"),
        (["--bogus"], "--bogus"),
    ],
)
def test_a_wrong_question_is_one_line_that_says_what_would_be_right(capsys, answers, arguments, message):
    assert message in refused(capsys, *arguments)


def test_gpus_lists_the_catalogue_within_80_columns(capsys):
    code, out, _ = run(capsys, "gpus")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "H100-SXM-80GB" in out
    _, out, _ = run(capsys, "gpus", "--csv")
    (h100,) = [row for row in csv.DictReader(io.StringIO(out)) if row["gpu"] == "H100-SXM-80GB"]
    # The data sheet: 132 SMs, 80 GB of HBM3, 700 W.
    assert (h100["sm_count"], h100["dram_gib"], h100["power_limit_default_w"]) == ("132", "80.0", "700.0")


def test_gpus_show_tells_sources_and_takes_changes(capsys):
    code, out, _ = run(capsys, "gpus", "show", "a100", "--set", "sm_count=120")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert out.startswith("A100-SXM-80GB+sm_count=120\n")
    assert "a100 means A100-SXM-80GB" in out
    assert "set by the user" in out
    _, out, _ = run(capsys, "gpus", "show", "a100", "--json")
    fields = {row["field"]: row for row in json.loads(out)["fields"]}
    assert fields["sm_count"]["value"] == "108"
    assert all(
        fields[name]["source"] for name in ("dram_gb_s", "tensor_tflops.bf16", "power_limit_default_w", "idle_w")
    )


def test_models_lists_what_a_filter_asks_for(capsys):
    _, out, _ = run(capsys, "models", "llama-3.1-8b", "--json")
    (llama_8b,) = [row for row in json.loads(out)["models"] if row["model"] == MODEL]
    assert llama_8b["parameters"] == pytest.approx(8.03e9, rel=0.001)  # its model card
    code, out, _ = run(capsys, "models", "bert")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80


def test_doctor_tells_versions_and_extras_without_a_gpu(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    code, out, _ = run(capsys, "doctor", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["versions"]["joulecast"] == joulecast.__version__
    assert {"calibrate", "pandas", "plot"} <= {one["extra"] for one in found["extras"]}
    assert "dev" not in {one["extra"] for one in found["extras"]}
    code, out, _ = run(capsys, "doctor")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80


def test_kernels_prints_what_went_in_and_what_came_out(capsys, tmp_path):
    table = tmp_path / "shapes.csv"
    table.write_text("m,n,k\n1,4096,4096\n8192,4096,4096\n", encoding="utf-8")
    arguments = ["kernels", "gemm", "--gpu", "h100", "--columns", str(table), "--set", "dtype=bf16"]
    code, out, _ = run(capsys, *arguments, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert [(row["m"], row["dtype"]) for row in rows] == [("1", "bf16"), ("8192", "bf16")]
    # 2 * 8192 * 4096 * 4096 FLOP at the data sheet's 989.4 TFLOP/s take 278 us at least.
    assert float(rows[1]["time_s"]) > 2 * 8192 * 4096 * 4096 / 989.4e12
    parquet = tmp_path / "out.parquet"
    code, out, _ = run(capsys, *arguments, "--output", str(parquet))
    assert (code, out) == (0, "")
    assert parquet.read_bytes()[:4] == b"PAR1"
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("verb", [["kernels", "gemm", "--gpu", "h200", "--columns"], ["predict", "--gpu", "h200"]])
def test_a_damaged_table_is_read_or_refused_in_one_line(capsys, tmp_path, verb):
    path = tmp_path / "shapes.parquet"
    pl.DataFrame({"m": range(1, 200), "n": [64] * 199, "k": 64, "dtype": "bf16", "op": "gemm"}).drop(
        "op" if verb[0] == "kernels" else []
    ).write_parquet(path)
    whole = path.read_bytes()
    draw = random.Random(3)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        code, out, err = run(capsys, *verb, str(path), "--csv")
        assert code in (0, 2)
        assert (err.count("\n"), out == "") == ((1, True) if code else (0, False))


def test_help_and_version(capsys):
    assert run(capsys, "--version") == (0, f"joulecast {joulecast.__version__}\n", "")
    for arguments in ([], ["--help"], ["predict", "-h"], ["gpus", "show", "--help"], ["kernels", "--help"]):
        code, out, err = run(capsys, *arguments)
        assert (code, err) == (0, "")
        assert out.startswith("Usage: joulecast")
        assert max(map(len, out.splitlines())) <= 80


def test_a_fault_of_ours_asks_for_a_report_and_shows_itself_only_when_asked(capsys, answers, monkeypatch):
    def broken(*args, **options):
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(joulecast, "predict", broken, raising=False)
    monkeypatch.delenv("JOULECAST_DEBUG", raising=False)
    code, out, err = run(capsys, "predict", MODEL, "--gpu", "h100")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "please report it (ZeroDivisionError: division by zero)" in err
    monkeypatch.setenv("JOULECAST_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["predict", MODEL, "--gpu", "h100"])


def test_an_interrupt_is_quiet(capsys, answers, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(joulecast, "predict", interrupted, raising=False)
    assert run(capsys, "predict", MODEL, "--gpu", "h100") == (130, "", "")


def test_a_message_of_several_lines_becomes_one(capsys, answers, monkeypatch):
    def refusing(*args, **options):
        raise InputError("first\nsecond\x1b[31m")

    monkeypatch.setattr(joulecast, "predict", refusing, raising=False)
    assert (
        refused(capsys, "predict", MODEL, "--gpu", "h100") == "joulecast: first second\N{REPLACEMENT CHARACTER}[31m\n"
    )


WORDS = st.one_of(
    st.sampled_from(
        ["predict", "gpus", "show", "models", "kernels", "gemm", "gpt2", "h100", "a100,t4", "--", "-", "="]
    ),
    st.sampled_from(
        ["--gpu", "--batch", "--set", "--json", "--csv", "--kernels", "--clock", "--top", "--price", "--tp"]
    ),
    st.sampled_from(
        ["--power-limit", "--dtype", "--generate", "--prompt", "--columns", "--currency", "--help", "sm_count=9"]
    ),
    st.integers().map(str),
    st.floats().map(str),
    st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=12),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=st.lists(WORDS, max_size=8), verb=st.sampled_from(["predict", "gpus", "models", "kernels"]))
def test_whatever_is_typed_the_answer_is_an_answer_or_one_line(capsys, answers, monkeypatch, arguments, verb):
    monkeypatch.setenv("JOULECAST_DEBUG", "1")
    code, out, err = run(capsys, verb, *arguments)
    assert code in (0, 2)
    assert err.count("\n") == (1 if code == 2 else 0)
    assert (out == "") == (code == 2)


SIZES = st.one_of(
    st.integers(-1, 10**12).map(str), st.sampled_from(["1", "7", "64", "1e3", "nan", "inf", "٣", "", "10**9"])
)
QUANTITIES = st.one_of(
    st.floats(0, 3000).map(lambda x: f"{x:.3f}"), st.sampled_from(["0", "-1", "inf", "nan", "1e999"])
)
DTYPES = st.sampled_from(["fp32", "tf32", "fp16", "bf16", "fp8", "fp8_block", "int8", "int4", "nvfp4", "w4a16", "fp7"])
VALUES = {
    **dict.fromkeys(["--batch", "--prompt", "--generate", "--image-size", "--tp", "--pp", "--ep"], SIZES),
    **dict.fromkeys(["--clock", "--power-limit", "--host-us-per-launch", "--price"], QUANTITIES),
    **dict.fromkeys(["--dtype", "--weight-dtype", "--kv-dtype", "--attn-dtype"], DTYPES),
    "--attention": st.sampled_from(["fused", "eager", "flash"]),
    "--launch": st.sampled_from(["eager", "compiled", "cuda_graph", "lazy"]),
    "--engine": st.sampled_from(["pytorch", "vllm", "trtllm", "none"]),
    "--set": st.sampled_from(["sm_count", "dram_gb_s", "dram_gib", "idle_w", "tensor_tflops.bf16", "bogus"]).flatmap(
        lambda field: QUANTITIES.map(lambda value: f"{field}={value}")
    ),
    "--gpu": st.sampled_from(["h100", "a100,t4", "mi300x", "gtx 750 ti", "h10", "tpu", ""]),
}


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    model=st.sampled_from(["gpt2", "google-bert/bert-base-uncased", "google/vit-base-patch16-224", "t5-small"]),
    flags=st.lists(st.sampled_from(sorted(VALUES)), max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: VALUES[name] for name in names})
    ),
    form=st.sampled_from([[], ["--json"], ["--csv", "--kernels"], ["--kernels"]]),
    ignore=st.booleans(),
)
def test_whatever_is_asked_of_a_real_model_is_answered_or_refused_in_one_line(
    capsys, monkeypatch, model, flags, form, ignore
):
    monkeypatch.setenv("JOULECAST_DEBUG", "1")
    arguments = [text for pair in {"--gpu": "h100", **flags}.items() for text in pair]
    code, out, err = run(capsys, "predict", model, *arguments, *form, *["--ignore-memory"] * ignore)
    assert code in (0, 2)
    assert err.count("\n") == (1 if code == 2 else 0)
    assert (out == "") == (code == 2)
    if code == 0 and form == ["--json"]:
        for one in json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["predictions"]:
            assert one["error"] or one["total"]["energy_j"] > 0
    if code == 0 and not form:
        assert max(map(len, out.splitlines())) <= 80, out


def _process(*arguments, **options):
    environment = {**os.environ, "NO_COLOR": "1", **options.pop("env", {})}
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, env=environment, **options)


def test_a_process_ends_with_the_code_and_the_line():
    done = _process("predict", "no-such-model-at-all", "--gpu", "h100", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.startswith(b"joulecast: unknown model 'no-such-model-at-all'")
    assert done.stderr.count(b"\n") == 1


def test_a_reader_that_goes_away_is_no_error():
    command = (
        f'"{sys.executable}" -c "{PROGRAM}" gpus show h100 --json | head -c 1 >/dev/null; exit "${{PIPESTATUS[0]}}"'
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True)
    assert done.stderr == b""
    assert done.returncode in (0, 141)


def test_the_command_line_loads_no_table_library_to_refuse_a_flag():
    arguments = ["predict", "x", "--gpu", "h100", "--batch", "0"]
    program = f"import sys; from joulecast.cli import main; main({arguments}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "typer" in loaded
    assert not loaded & {"polars", "rich", "pandas", "scipy", "sklearn", "numpy"}
