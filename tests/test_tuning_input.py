"""What `joulecast tune` reads: recordings, meters' files, flags and specs that can't be used end in one clear line."""

from __future__ import annotations

import numpy as np
import pytest

from joulecast.cli import main
from joulecast.errors import InfeasibleError, InputError
from joulecast.gpus import load_gpu
from joulecast.meters.external import read_powers
from joulecast.meters.reading import Reading
from joulecast.meters.recording import read_recording
from joulecast.tuning.replay import ReplayEvaluator
from joulecast.tuning.space import Space
from joulecast.tuning.strategies import strategy
from joulecast.tuning.tune import replay, search

GOOD = "B,W,time_ms,energy_J\n32,1,1.0,0.1\n64,1,1.1,0.2\n32,2,1.2,0.3\n64,2,1.3,0.4\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("1.1", "abc"), "time_ms must hold plain numbers"),
        (GOOD.replace("0.2", "0.2 J"), "energy_J must hold plain numbers"),
        (GOOD + "32,1,1.0,9.0\n", "holds B=32 W=1 twice"),
        (GOOD.replace("64,1", ",1"), "row 2 has no B"),
        (GOOD.replace("B,W", "alpha,W").replace("32,", "0.5,").replace("64,", "0.25,"), "columns of fractions"),
    ],
)
def test_a_recording_that_can_not_be_used_is_refused_in_a_line(tmp_path, text, said):
    file = tmp_path / "space.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        read_recording(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            GOOD.replace("0.1\n", "100\n").replace("0.2\n", "200\n").replace("0.3\n", "300\n"),
            r"1.41e\+05 W in the middle",
        ),
        (GOOD.replace(",1.", ",1000."), "0.2[0-9]* W in the middle"),
        ("B,time_ms\n32,1e-6\n64,2e-6\n", "time_ms is 1.5e-06 in the middle, which can't be in ms"),
        ("nvml_gr_clock,time_ms\n1410000000,1\n1665000000,2\n", r"nvml_gr_clock is 1.54e\+09 .* can't be in MHz"),
        (
            "B,core_clock_MHz,time_ms\n1,1.41,1\n2,1.66,2\n",
            "core_clock_MHz is 1.5[34] in the middle, which can't be in MHz",
        ),
        ("B,power_limit_w,time_ms\n1,250000,1\n2,300000,2\n", "power_limit_w is .* can't be in W"),
    ],
)
def test_a_recording_in_another_unit_is_refused_in_a_line(text, said, tmp_path):
    (tmp_path / "space.csv").write_text(text)
    with pytest.raises(InputError, match=said):
        read_recording(tmp_path / "space.csv")


def test_a_recording_is_known_by_its_content(tmp_path):
    import polars as pl

    (tmp_path / "space.csv").write_text(GOOD)
    table = pl.read_csv(tmp_path / "space.csv")
    table.write_parquet(tmp_path / "parquet.csv")
    (tmp_path / "csv.parquet").write_text(GOOD)
    rows = read_recording(tmp_path / "space.csv").configs
    assert read_recording(tmp_path / "parquet.csv").configs == rows
    assert read_recording(tmp_path / "csv.parquet").configs == rows


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"SQLite format 3\x00" + bytes(100), "is an SQLite database"), (b'{"cache": {}}', "is JSON"),
        (b"\x1f\x8b\x08rest", "compressed with gzip"),
        (b"\xff\xfea\x00", "UTF-16"), (b"abc\x00\x01", "is a binary file"),
        (b"PAR1 and no more", "can't read .* as parquet"),
    ],
)  # fmt: skip
def test_other_files_are_told_for_what_they_are(data, said, tmp_path):
    for name in ("space.csv", "space.parquet"):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=said):
            read_recording(tmp_path / name)
    if b"PAR1" not in data:
        with pytest.raises(InputError, match=said):
            read_powers(tmp_path / "space.csv")
    with pytest.raises(InputError, match="no regular file"):
        read_recording(tmp_path)


@pytest.mark.parametrize(
    "flags", [["--power-limits", "99999"], ["--power-limits", "100:700:200"], ["--clocks", "5000"]]
)
def test_clocks_and_limits_that_the_gpu_does_not_have_are_refused_with_the_range(flags, capsys):
    pytest.importorskip("triton")
    assert main(["tune", "softmax", "--gpu", "h100", *flags]) == 2
    said = capsys.readouterr().err
    gpu = load_gpu("h100")
    told = (
        (gpu.clock_min_mhz, gpu.clock_max_mhz)
        if "--clocks" in flags
        else (gpu.power_limit_min_w, gpu.power_limit_max_w)
    )
    assert f"{told[0]:g} to {told[1]:g}" in said


def test_the_file_of_an_external_meter_is_looked_at_before_anything_else(capsys, tmp_path):
    pytest.importorskip("triton")
    asked = ["tune", "softmax", "--gpu", "h100", "--meter", "external"]
    assert main(asked) == 2
    assert "--meter-file" in capsys.readouterr().err
    (tmp_path / "meter.csv").write_text("time_s,power_W\n")
    assert main([*asked, "--meter-file", str(tmp_path / "meter.csv")]) == 2
    assert "start the program that writes it first" in capsys.readouterr().err


def test_small_integers_words_and_truth_are_tunables(tmp_path):
    import polars as pl

    rows = {"B": [1, 2], "V": [True, False], "time_ms": [1.0, 2.0], "energy_J": [0.1, 0.2]}
    pl.DataFrame(rows).with_columns(pl.col("B").cast(pl.Int16)).write_parquet(tmp_path / "s.parquet")
    assert read_recording(tmp_path / "s.parquet").configs == ({"B": 1, "V": True}, {"B": 2, "V": False})


@pytest.mark.parametrize("rows", [[[], []], [None, None]])
def test_launches_that_hold_nothing_are_refused(tmp_path, rows):
    import polars as pl

    table = pl.DataFrame({"B": [1, 2], "time_ms": [1.0, 2.0], "energy_J": [0.1, 0.2]})
    launches = pl.Series("launch_energy_J", rows, dtype=pl.List(pl.Float64))
    table.with_columns(launches).write_parquet(tmp_path / "s.parquet")
    with pytest.raises(InputError, match="launch_energy_J must hold a list of numbers"):
        read_recording(tmp_path / "s.parquet")


def test_a_session_and_tunables_that_leave_nothing_are_refused(tmp_path):
    file = tmp_path / "space.csv"
    file.write_text(GOOD)
    with pytest.raises(InputError, match="holds no repeats"):
        read_recording(file, session="x")
    with pytest.raises(InputError, match="leaves nothing to search"):
        read_recording(file).only(B=32, W=1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("xtime_s,power_W\n1,100\n", "needs the columns"),
        ("time_s;power_W\n1;100\n", "needs the columns"),
        ("time_s,power_W\n1,100\n2,nan\n", "line 3: times are finite"),
        ("time_s,power_W\n1,-100\n", "line 2: times are finite, and powers are 0 W or more"),
        ("time_s,power_W\n1,inf\n", "line 2"),
    ],
)
def test_a_meters_file_that_can_not_be_is_refused_in_a_line(tmp_path, text, said):
    file = tmp_path / "meter.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        read_powers(file)


def test_a_mark_of_byte_order_and_blanks_in_the_header_change_nothing(tmp_path):
    file = tmp_path / "meter.csv"
    file.write_text("\ufefftime_s, power_W\n1, 100\n2, 150\n", encoding="utf-8")
    times, powers = read_powers(file)
    np.testing.assert_array_equal([times, powers], [[1.0, 2.0], [100.0, 150.0]])


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("race", {"first": "abc"}), ("race", {"first": -1}), ("race", {"first": 1.5}),
        ("race", {"confidence": float("nan")}), ("paper", {"mu": "abc"}), ("paper", {"mu": -1.0}),
        ("paper", {"readings": 0}), ("random", {"passes": 0}), ("measure-all", {"passes": 1e9}),
        ("measure-all", {"eligible_only": 3}),
    ],
)  # fmt: skip
def test_a_setting_of_another_kind_is_refused(name, setting):
    with pytest.raises(InputError, match=f"the setting {next(iter(setting))} takes"):
        strategy(name, **setting)


def test_a_configuration_that_names_what_is_no_tunable_is_refused():
    with pytest.raises(InputError, match="FOO is no tunable of the space: B"):
        Space.of({"B": [1, 2]}).code({"B": 1, "FOO": 3})


@pytest.mark.parametrize(
    "flags",
    [
        ["--objective", "time"], ["--baseline", "a=1"], ["--strategy", "paper"], ["--evaluations", "10"],
        ["--readings", "100"], ["--log", "x.db"], ["--set", "first=8"], ["--plot", "x.svg"], ["--winners", "w.json"],
        ["--residency", "loop"], ["--meter-file", "x.csv"],
    ],
)  # fmt: skip
def test_flags_of_one_kernel_are_not_ignored_with_a_model(flags, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "--model", "bert-large-uncased", "--gpu", "h100", *flags]) == 2
    assert f"{flags[0]} is of one kernel" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flags", [["--strategy", "paper"], ["--evaluations", "10"], ["--set", "first=8"]])
def test_flags_of_measured_searches_are_not_ignored_with_the_model_meter(flags, capsys):
    pytest.importorskip("triton")
    assert main(["tune", "softmax", "--gpu", "h100", *flags]) == 2
    assert "nothing is timed or read with the model meter" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--readings", "50"], ["--plot", "x.svg"], ["--noise", "0.02"], ["--slack", "0.05"]])
def test_flags_of_energy_are_not_ignored_with_the_objective_time(flags, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.csv").write_text(GOOD)
    assert main(["tune", "--replay", "space.csv", "--objective", "time", *flags]) == 2
    assert "the objective time asks for none" in capsys.readouterr().err


def test_a_file_that_holds_no_winners_is_refused_before_anything_is_compiled(capsys, tmp_path):
    file = tmp_path / "w.json"
    file.write_text("{}")
    assert main(["tune", "softmax", "--gpu", "h100", "--winners", str(file)]) == 2
    assert "no file of winners" in capsys.readouterr().err
    assert file.read_text() == "{}"
    assert main(["tune", "softmax", "--gpu", "h100", "--winners", str(tmp_path)]) == 2


@pytest.mark.parametrize("given", ["nothing", "not finite"])
def test_a_reference_that_says_nothing_makes_no_kernel_right(given):
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from joulecast.tuning.correctness import wrong
    from joulecast.tuning.operators import operator

    spec = operator("softmax")
    expected = {} if given == "nothing" else {"y": torch.full((2,), float("nan"))}
    assert given in wrong(spec, spec.baseline, {"y": torch.zeros(2)}, expected)
    assert wrong(spec, spec.baseline, {"y": torch.ones(2)}, {"y": torch.ones(2)}) == ""


def test_a_tensor_has_sizes():
    from joulecast.tuning.kernelspec import Tensor

    with pytest.raises(InputError, match="sizes of 1 or more"):
        Tensor((-4,), "fp32")


def test_a_module_that_leaves_is_told(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    from joulecast.tuning.user_kernel import imported

    (tmp_path / "leaves_at_once.py").write_text("import sys\nsys.exit(4)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="can't import leaves_at_once: SystemExit: 4"):
        imported("leaves_at_once:spec")


@pytest.mark.parametrize(
    ("strategy_name", "flags", "said"),
    [
        ("paper", ["--evaluations", "10"], "evaluations is a bound of race and random: paper has settings"),
        ("measure-all", ["--evaluations", "10"], "a bound of race and random"),
        ("random", ["--readings", "50"], "readings is a bound of race"),
        ("paper", ["--objective", "time"], "paper looks for energy: race, measure-all, random look for the fastest"),
    ],
)
def test_what_a_strategy_does_not_look_at_is_refused(strategy_name, flags, said, capsys, tmp_path):
    (tmp_path / "space.csv").write_text(GOOD)
    assert main(["tune", "--replay", str(tmp_path / "space.csv"), "--strategy", strategy_name, *flags]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--batch", "--size", "--check", "--cache"])
def test_an_empty_value_is_not_taken_for_none(flag, capsys, tmp_path):
    (tmp_path / "space.csv").write_text(GOOD)
    assert main(["tune", "--replay", str(tmp_path / "space.csv"), flag, ""]) == 2
    assert capsys.readouterr().err.startswith((f"joulecast: {flag} is of", f"joulecast: {flag} is empty"))


def test_noise_is_not_ignored_where_no_energy_is_read(tmp_path):
    (tmp_path / "space.csv").write_text(GOOD)
    assert replay(tmp_path / "space.csv", objective="time").chosen == {"B": 32, "W": 1}
    with pytest.raises(InputError, match="noise is of readings of energy"):
        replay(tmp_path / "space.csv", objective="time", noise=0.02)


def test_an_empty_size_is_refused(capsys):
    pytest.importorskip("triton")
    assert main(["tune", "softmax", "--gpu", "h100", "--size", ""]) == 2
    assert "--size takes field=value" in capsys.readouterr().err


STRATEGIES = [
    ("race", {}),
    ("paper", {}),
    ("random", {}),
    ("measure-all", {}),
    ("measure-all", {"eligible_only": True}),
]


def spoilt(energies, rows=40):
    """A recording whose fastest configurations have these energies; those of the others rise with time."""
    count = max(rows, len(energies))
    text = "a,time_ms,energy_J\n"
    for row in range(count):
        energy = energies[row] if row < len(energies) else 0.2 + 0.001 * row
        text += f"{row},{1.0 + 0.001 * row},{energy}\n"
    return text


@pytest.mark.parametrize(("strategy_name", "settings"), STRATEGIES)
@pytest.mark.parametrize("bad", ["", "0", "-0.2", "nan", "inf"])
def test_a_row_whose_energy_can_not_be_is_left_out_and_counted(strategy_name, settings, bad, tmp_path):
    (tmp_path / "space.csv").write_text(spoilt([0.2, bad, 0.15, bad, 0.19]))
    found = replay(
        tmp_path / "space.csv", noise=0.001, slack=0.02, strategy_name=strategy_name, settings=settings, seed=1
    )
    assert found.chosen == {"a": 2}
    assert found.baseline == {"a": 0}
    assert found.saving is not None
    assert found.saving.estimate == pytest.approx(0.25, abs=0.005)
    assert sum(found.refused.values()) == 10
    told = "an energy of" if bad in ("0", "-0.2") else "no energy was recorded"
    assert all(reason.startswith(told) for reason in found.refused)


@pytest.mark.parametrize(("strategy_name", "settings"), STRATEGIES)
def test_where_the_fastest_has_no_energy_the_next_is_the_baseline(strategy_name, settings, tmp_path):
    (tmp_path / "space.csv").write_text(spoilt(["", "", 0.25, 0.2]))
    found = replay(
        tmp_path / "space.csv", noise=0.001, slack=0.02, strategy_name=strategy_name, settings=settings, seed=1
    )
    assert (found.fastest, found.baseline, found.chosen) == ({"a": 0}, {"a": 2}, {"a": 3})
    assert any("the baseline is the fastest of those whose energy can" in note for note in found.notes)


@pytest.mark.parametrize(("strategy_name", "settings"), STRATEGIES)
def test_where_nothing_within_the_slack_can_be_read_the_search_ends_in_a_line(strategy_name, settings, tmp_path):
    (tmp_path / "space.csv").write_text(spoilt(["0"] * 25))
    with pytest.raises(InfeasibleError, match=r"none of 21 .* within the slack can't be read: an energy of 0 J"):
        replay(tmp_path / "space.csv", noise=0.001, slack=0.02, strategy_name=strategy_name, settings=settings)


@pytest.mark.parametrize(("strategy_name", "settings"), STRATEGIES)
def test_a_baseline_of_ones_own_is_timed_whatever_the_strategy_draws(strategy_name, settings, tmp_path):
    (tmp_path / "space.csv").write_text(spoilt([]) + "999,,\n")
    bound = {"evaluations": 5} if strategy_name == "random" else {}
    asked = {"noise": 0.001, "slack": 0.2, "strategy_name": strategy_name, "settings": settings, **bound}
    assert replay(tmp_path / "space.csv", baseline={"a": 39}, **asked).baseline == {"a": 39}
    with pytest.raises(InfeasibleError, match=r"the baseline .* does not run: .* no time was recorded"):
        replay(tmp_path / "space.csv", baseline={"a": 999}, **asked)
    (tmp_path / "space.csv").write_text(spoilt([0.2, "0"]))
    with pytest.raises(InfeasibleError, match="the energy of the baseline can't be read"):
        replay(tmp_path / "space.csv", baseline={"a": 1}, **asked)


def test_a_meter_that_reads_nothing_any_more_ends_the_search(tmp_path):
    class Dead(ReplayEvaluator):
        replays = False

        def energy(self, *_):
            return [Reading(0.0, 1e-3, refused="the counter stands still")]

    (tmp_path / "space.csv").write_text(spoilt([]))
    dead = Dead(read_recording(tmp_path / "space.csv"))
    with pytest.raises(InfeasibleError, match="no energy of 10 configurations in a row could be read"):
        search(dead, dead.space, slack=0.5)


def test_a_model_says_what_was_asked_and_why_an_operator_was_not_tuned(monkeypatch, capsys):
    from joulecast.tuning import model_wide

    def refused(*_):
        raise InfeasibleError("no tile of it fits")

    monkeypatch.setattr(model_wide, "_tuned", refused)
    whole = model_wide.tune_model("Qwen/Qwen2.5-7B", "h100", top=1, prompt_tokens=512)
    (name,) = whole.failed
    assert name.startswith("matmul m=512 n=18944 k=3584")
    assert [part.why for part in whole.parts if part.operator][:2] == ["", "beyond the first 1"]
    assert whole.parts[-1].why
    asked = ["tune", "--model", "Qwen/Qwen2.5-7B", "--gpu", "h100", "--top", "1", "--prompt", "512"]
    assert main(asked) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "batch 1 · 512 tokens on H100-SXM-80GB:" in page
    assert "no kernel here computes elementwise" in page
    assert "no tile of it fits" in page


def test_a_search_in_which_nothing_else_is_fast_enough_says_so(tmp_path):
    (tmp_path / "space.csv").write_text(spoilt([]))
    found = replay(tmp_path / "space.csv", noise=0.001, slack=0.0)
    assert found.verdict == "no significant saving: nothing else was found within the slack"
    with pytest.raises(InputError, match="this one lacks num_warps, num_stages"):
        Space.of({"B": [1], "num_warps": [2], "num_stages": [3]}).code({"B": 1})
