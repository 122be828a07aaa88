"""Money and carbon of energy: hand-derived values, tables over hours, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import joulecast as jc
from command_line import run
from joulecast.errors import InputError, UnknownNameError
from joulecast.scenarios.footprint import Site, account, footprint, site_of
from joulecast.scenarios.grid import region, regions
from joulecast.scenarios.hours import HourTable, read_hours

KWH = 3.6e6


def written(tmp_path, text, name="table.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def daily(values):
    return HourTable(np.arange(25) * 3600.0, np.asarray(values, dtype=float), "day")


def test_a_day_of_eight_gpus_costs_what_the_hand_derivation_says():
    # 8 GPUs x 700 W x 24 h = 134.4 kWh; hosts 8 x 100 W x 24 h = 19.2 kWh; x PUE 1.25 = 192 kWh.
    # At 0.30 EUR: 57.60 EUR; at 400 g CO2e/kWh: 76,800 g.
    found = footprint(
        134.4 * KWH, time_s=86400, gpu_count=8, price=0.30, currency="EUR", carbon=400, pue=1.25, host_w=100
    )
    assert found.energy_kwh == pytest.approx(192.0)
    assert found.host_j == pytest.approx(19.2 * KWH)
    assert found.building_j == pytest.approx(0.25 * 153.6 * KWH)
    assert found.cost == pytest.approx(57.60)
    assert found.carbon_g_co2e == pytest.approx(76800.0)
    assert found.currency == "EUR"


def test_host_share_is_on_top_of_the_gpus_energy():
    assert footprint(KWH, host_share=0.3).energy_kwh == pytest.approx(1.3)


def test_without_region_no_carbon_is_told():
    found = footprint(KWH, price=0.2)
    assert found.carbon_g_co2e is None
    assert found.g_co2e_per_kwh is None
    assert any("cooling" in note for note in found.notes)
    assert any("host" in note for note in found.notes)


def test_world_average_is_labelled_and_only_on_request():
    found = footprint(KWH, region="world")
    assert found.carbon_source.startswith("World average")
    assert found.carbon_kind == "lifecycle"
    # Ember's Global Electricity Review 2024: 480 g CO2/kWh in 2023.
    assert found.carbon_g_co2e == pytest.approx(480, rel=0.01)


@pytest.mark.parametrize("name", ["France", "france", "FR", "FRA"])
def test_a_region_is_found_by_name_and_code(name):
    assert region(name).code == "FRA"
    assert region(name).g_co2e_per_kwh < 100  # nuclear and hydro


def test_states_of_the_us_are_direct_and_georgia_is_the_country():
    assert region("California").code == "US-CA"
    assert region("us-ca").kind == "direct"
    assert region("Georgia").code == "GEO"
    assert region("Georgia, United States").code == "US-GA"


def test_every_region_has_its_source_and_a_possible_value():
    assert len(regions()) > 200
    for one in regions():
        assert 0 <= one.g_co2e_per_kwh < 1500
        assert one.kind in ("lifecycle", "direct")
        assert 2020 < one.year < 2026
        assert one.source


def test_unknown_region_names_the_nearest():
    with pytest.raises(UnknownNameError, match="Germany"):
        region("Germny")


@given(
    energy=st.lists(st.floats(0, 1e12), min_size=1, max_size=5),
    pue=st.floats(1, 3),
    more=st.floats(0, 2),
    share=st.floats(0, 1),
)
def test_a_higher_pue_never_costs_less_and_parts_sum_to_the_whole(energy, pue, more, share):
    low = account(energy, 10.0, Site(pue=pue, host_share=share, price_per_kwh=0.2, g_co2e_per_kwh=300.0))
    high = account(energy, 10.0, Site(pue=pue + more, host_share=share, price_per_kwh=0.2, g_co2e_per_kwh=300.0))
    assert (high.cost >= low.cost * (1 - 1e-12)).all()
    assert (high.carbon_g_co2e >= low.carbon_g_co2e * (1 - 1e-12)).all()
    np.testing.assert_allclose(low.gpu_j + low.host_j + low.building_j, low.energy_j)


def test_arrays_broadcast_over_design_points():
    found = account(np.full((3, 1), KWH), np.ones(4), Site(price_per_kwh=0.5))
    assert found.cost.shape == (3, 4)
    np.testing.assert_allclose(found.cost, 0.5)


hours = st.lists(st.floats(0, 1000), min_size=24, max_size=24)


@given(values=hours, start=st.integers(0, 86399), duration=st.integers(1, 3 * 86400))
def test_a_table_over_hours_gives_the_mean_weighted_by_time(values, start, duration):
    table = daily(values)
    # Second by second would be slow: weights of each hour by the overlap of intervals, wrapped.
    total = 0.0
    for hour in range(24 * 5):
        overlap = min(start + duration, (hour + 1) * 3600) - max(start, hour * 3600)
        total += values[hour % 24] * max(overlap, 0)
    assert float(table.mean(start, duration)) == pytest.approx(total / duration, rel=1e-9, abs=1e-6)


def test_a_run_of_nearly_a_day_is_not_taken_for_one_within_its_hour():
    # From 00:30 to 00:10 of the next day: 0.5 h at 0, 22 h at 1, 1 h at 1, 10 min at 0.
    table = daily([0.0] + [1.0] * 23)
    length = 23 * 3600 + 40 * 60
    assert float(table.mean(1800, length)) == pytest.approx(23 * 3600 / length)


def test_long_runs_tend_to_the_mean_of_the_day():
    table = daily(np.arange(24))
    assert float(table.mean(5 * 3600, 7 * 86400)) == pytest.approx(11.5)
    assert table.whole_mean() == pytest.approx(11.5)


def test_a_millisecond_far_into_a_year_keeps_its_figure():
    table = HourTable(np.arange(8761) * 3600.0, np.arange(8760.0), "year")
    start = table.seconds_of("2026-12-31T22:30")
    assert float(table.mean(start, 1e-3)) == 8758.0


def test_energy_at_night_is_cheaper_where_the_table_says_so(tmp_path):
    rows = "\n".join(f"{hour},{0.1 if hour < 6 else 0.4}" for hour in range(24))
    path = written(tmp_path, f"hour,EUR_per_kWh\n{rows}\n")
    night = footprint(KWH, time_s=3600, price=path, start="02:00")
    across = footprint(KWH, time_s=2 * 3600, price=str(path), start="5:00")
    assert night.cost == pytest.approx(0.1)
    assert across.cost == pytest.approx(0.25)
    assert footprint(KWH, time_s=3600, price=path).cost == pytest.approx((6 * 0.1 + 18 * 0.4) / 24)
    assert any("mean of all hours" in note for note in footprint(KWH, price=path).notes)


def test_runs_after_one_another_share_a_start():
    site = Site(price_per_kwh=daily([1.0] * 12 + [3.0] * 12), start="11:00")
    found = account([KWH, KWH], [3600.0, 3600.0], site, offset_s=[0.0, 3600.0])
    np.testing.assert_allclose(found.cost, [1.0, 3.0])


def test_dates_hold_until_the_next_and_refuse_what_lies_outside(tmp_path):
    path = written(tmp_path, "time;value\n2026-01-01T00:00;100\n2026-01-01T01:00;300\n")
    table = read_hours(path, "carbon", "g CO2e/kWh", least=0, most=5000)
    start = table.seconds_of(datetime(2026, 1, 1, 0, 30))
    assert float(table.mean(start, 3600)) == pytest.approx(200)
    assert float(table.mean(start, 5400)) == pytest.approx((0.5 * 100 + 1 * 300) / 1.5)
    with pytest.raises(InputError, match=r"covers 2026-01-01 00:00 to 2026-01-01 02:00, but the run goes from"):
        table.mean(start, 5401)


def test_zones_are_heeded(tmp_path):
    path = written(tmp_path, "time,value\n2026-01-01T00:00+01:00,100\n2026-01-01T01:00+01:00,300\n")
    assert footprint(KWH, time_s=60, carbon=path, start="2026-01-01T00:30Z").carbon_g_co2e == pytest.approx(300)
    with pytest.raises(InputError, match="times with a zone"):
        footprint(KWH, time_s=60, carbon=path, start="2026-01-01T00:30")


def test_prices_of_an_exchange_may_fall_below_zero(tmp_path):
    path = written(tmp_path, "time,EUR\n2026-06-01T12:00,-0.02\n2026-06-01T13:00,0.1\n")
    assert footprint(KWH, time_s=60, price=path, start="2026-06-01T12:30").cost == pytest.approx(-0.02)


ALL_HOURS = "".join(f"{hour},1\n" for hour in range(24))
DAMAGED = {
    "no rows": "hour,value\n",
    "two columns": "hour,value\n0,1,2\n",
    "is no number": ALL_HOURS.replace("3,1\n", "3,nan\n"),
    "line 4": ALL_HOURS.replace("3,1\n", "3,x\n"),
    "out of bounds": ALL_HOURS.replace("3,1\n", "3,-1\n"),
    "every hour once": ALL_HOURS.replace("3,1\n", "2,1\n"),
    "no hour and no time": "time,value\nnoon,1\n",
    "not later than": "time,value\n2026-01-01T01:00,1\n2026-01-01T01:00,2\n",
    "with and without a zone": "time,value\n2026-01-01T01:00,1\n2026-01-01T02:00Z,2\n",
    "one time only": "time,value\n2026-01-01T01:00,1\n",
    "a kWh, in g or money": "hour,kg_per_kwh\n" + ALL_HOURS,
    "is no whole hour": ALL_HOURS.replace("3,1\n", "3.5,1\n"),
}


@pytest.mark.parametrize("message", list(DAMAGED))
def test_damaged_tables_are_refused_in_one_line(message, tmp_path):
    path = written(tmp_path, DAMAGED[message])
    with pytest.raises(InputError, match=message) as error:
        footprint(KWH, carbon=path)
    assert "\n" not in str(error.value)


def test_files_that_are_no_tables_are_refused(tmp_path):
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    for path in (tmp_path / "absent.csv", tmp_path, tmp_path / "binary.csv"):
        with pytest.raises(InputError):
            footprint(KWH, carbon=path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"price": -0.1}, "price of a kWh"),
        ({"price": float("nan")}, "finite"),
        ({"carbon": -1}, "carbon intensity"),
        ({"carbon": 1e6}, "carbon intensity"),
        ({"pue": 0.9}, "PUE"),
        ({"pue": float("inf")}, "PUE"),
        ({"host_w": -1}, "host power"),
        ({"host_share": "x"}, "host share"),
        ({"carbon": 100, "region": "world"}, "not both"),
        ({"start": "18:00"}, "changes nothing"),
        ({"currency": "a long name"}, "currency"),
        ({"host_w": 100}, "time_s"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        footprint(KWH, **options)


@pytest.mark.parametrize("energy", [-1.0, float("nan"), float("inf"), "much"])
def test_energies_that_are_none_are_refused(energy):
    with pytest.raises(InputError):
        footprint(energy)


@pytest.mark.parametrize("start", ["25:00", "tomorrow", "2026-13-01T00:00", "-1"])
def test_starts_that_are_no_times_are_refused(start):
    with pytest.raises(InputError, match="start must be a time"):
        Site(price_per_kwh=daily(np.ones(24)), start=start)


def test_a_start_needs_its_date_where_the_table_is_a_week():
    table = HourTable(np.arange(169) * 3600.0, np.arange(168.0), "week")
    with pytest.raises(InputError, match="needs a date"):
        table.seconds_of("18:30")
    # 2026-01-07 is a Wednesday: two days after Monday.
    assert table.seconds_of("2026-01-07T01:00") == (2 * 24 + 1) * 3600


def test_a_number_that_looks_like_kilograms_is_told():
    assert any("481" in note for note in footprint(KWH, carbon=0.481).notes)


def test_a_prediction_has_its_own_time_and_gpus():
    p = jc.predict("bert-base-uncased", "a100-sxm-80gb", prompt_tokens=128)
    found = jc.footprint(p, price=0.2, carbon=100, host_w=50, pue=1.1)
    assert found.gpu_j == pytest.approx(p.energy_j)
    assert found.energy_j == pytest.approx(1.1 * (p.energy_j + 50 * p.time_s))
    with pytest.raises(InputError, match="its own"):
        jc.footprint(p, time_s=1.0)


MODEL = ("predict", "bert-base-uncased", "--gpu", "a100", "--prompt", "128")


def test_the_page_shows_money_and_carbon_with_their_source(capsys):
    code, out, _ = run(capsys, *MODEL, "--price", "0.25", "--currency", "EUR", "--region", "world", "--pue", "1.2")
    assert code == 0
    for part in ("footprint", "building 17 %", "at 0.250 EUR a kWh", "g CO2e", "World average 2023, lifecycle"):
        assert part in out
    assert "not counted: the host machine" in out
    assert max(map(len, out.splitlines())) <= 80


def test_without_its_flags_there_is_no_footprint(capsys):
    _, out, _ = run(capsys, *MODEL)
    assert "CO2" not in out
    assert "footprint" not in out
    _, out, _ = run(capsys, *MODEL, "--json")
    assert "carbon" not in out


def test_the_json_and_the_csv_carry_units_bounds_and_the_site(capsys):
    flags = ("--price", "0.25", "--carbon", "400", "--host-w", "60", "--host-share", "0.1", "--pue", "1.5")
    _, out, _ = run(capsys, *MODEL, *flags, "--json")
    found = json.loads(out)["predictions"][0]
    total = found["total"]
    expected = 1.5 * (1.1 * total["energy_j"] + 60 * total["time_s"])
    assert total["site_energy_j"] == pytest.approx(expected)
    assert total["cost"] == pytest.approx(expected / KWH * 0.25)
    assert total["carbon_g_co2e"] == pytest.approx(expected / KWH * 400)
    assert total["carbon_g_co2e_lower"] < total["carbon_g_co2e"] < total["carbon_g_co2e_upper"]
    assert total["cost_per_million_tokens"] == pytest.approx(total["cost"] / 128 * 1e6)
    assert found["footprint"]["pue"] == 1.5
    assert found["footprint"]["carbon_kind"] == "as given"
    _, out, _ = run(capsys, *MODEL, *flags, "--csv")
    row = list(csv.DictReader(io.StringIO(out)))[-1]
    assert float(row["cost"]) == pytest.approx(total["cost"])
    assert float(row["g_co2e_per_kwh"]) == 400


def test_phases_sum_to_the_whole_through_a_table(capsys, tmp_path):
    path = written(tmp_path, "hour,x\n" + "".join(f"{hour},{hour + 1}\n" for hour in range(24)))
    _, out, _ = run(
        capsys, "predict", "gpt2", "--gpu", "a100", "--prompt", "64", "--generate", "4", "--price", str(path),
        "--start", "05:59:59.99", "--json",
    )  # fmt: skip
    found = json.loads(out)["predictions"][0]
    assert len(found["phases"]) == 2
    assert all(6 <= phase["price_per_kwh"] <= 7 for phase in found["phases"])


def test_several_gpus_side_by_side(capsys):
    code, out, _ = run(
        capsys, "predict", "bert-base-uncased", "--gpu", "a100,h100", "--price", "0.2", "--region", "Norway"
    )
    assert code == 0
    assert "USD/M" in out
    assert "g CO2e/M" in out
    assert "carbon: Norway, yearly average" in out
    code, out, _ = run(capsys, *MODEL, "--clock", "900,1410", "--price", "0.2", "--carbon", "100")
    assert code == 0
    assert "USD a million tokens" in out
    assert "g CO2e a million tokens" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--price", "-1"], "money a kWh"),
        (["--price", "nan"], "money a kWh"),
        (["--pue", "0.9"], "PUE must be between 1 and 10"),
        (["--pue", "1,2"], "--pue"),
        (["--region", "germny"], "did you mean Germany"),
        (["--region", ""], "unknown region"),
        (["--carbon", "absent.csv"], "can't read carbon table absent.csv"),
        (["--carbon", "1e3"], "--carbon"),
        (["--carbon", "100", "--region", "fr"], "not both"),
        (["--host-w", "-5"], "--host-w"),
        (["--start", "5:00"], "changes nothing"),
        (["--price", "0.2", "--currency", ""], "--currency"),
    ],
)
def test_flags_that_cannot_be_end_in_one_line(flags, message, capsys):
    code, out, err = run(capsys, *MODEL, *flags)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not out


def test_a_site_is_made_once_for_many_runs():
    site = site_of(price=0.25, region="DE", pue=1.2)
    assert site.carbon_source.startswith("Germany, yearly average 2023, lifecycle")
    assert account(KWH, 1.0, site).cost == pytest.approx(0.3)


def test_the_european_union_is_a_region():
    # Ember's European Electricity Review 2024: 242 g CO2e/kWh in 2023.
    assert region("EU").g_co2e_per_kwh == pytest.approx(242, rel=0.02)
