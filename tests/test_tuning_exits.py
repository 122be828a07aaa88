"""Ways out of a search on damaged files, other devices and clocks, and tensors that do not go together."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from joulecast.errors import InputError  # noqa: E402
from joulecast.tuning.exits.inductor import lookup_table, use_in_inductor  # noqa: E402
from joulecast.tuning.exits.operators import torch_operator  # noqa: E402
from joulecast.tuning.exits.vllm import write_vllm  # noqa: E402
from joulecast.tuning.exits.winners import Winner, best_for, read_winners  # noqa: E402

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
TILE = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 128, "GROUP_M": 1, "num_warps": 8, "num_stages": 3}
EXPERTS = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4,
           "num_stages": 3}  # fmt: skip


def matmul(device=H100, *, policy="driver", measured=True, k=1024, **config):
    return {
        "operator": "matmul", "bucket": f"k={k},m=16,n=1024", "dtype": "fp16", "device": device, "clock_policy": policy,
        "config": {**TILE, **config},
        "evidence": {"problem": {"m": 16, "n": 1024, "k": k}, "measured": measured, "found_at": "2026-01-01T00:00:00Z"},
    }  # fmt: skip


def experts(device=H100, *, tokens=64, policy="driver", dtype="fp16", measured=True, at="2026-01-01", **config):
    return {
        "operator": "fused_moe", "bucket": "b", "dtype": dtype, "device": device, "clock_policy": policy,
        "config": {**EXPERTS, **config},
        "evidence": {"problem": {"tokens": tokens, "hidden": 4096, "inter": 28672, "experts": 8, "top_k": 2},
                     "measured": measured, "found_at": at, "versions": {"triton": "3.5.0"}},
    }  # fmt: skip


def written(tmp_path, *winners, schema="joulecast.winners/1"):
    path = tmp_path / "winners.json"
    path.write_text(json.dumps({"schema": schema, "winners": winners}))
    return path


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda one: one.pop("config"), "a winner needs"),
        (lambda one: one.update(config=[["BLOCK_M", 16]]), "a winner needs"),
        (lambda one: one.update(bucket=5), "a winner needs"),
        (lambda one: one["config"].pop("BLOCK_M"), "no BLOCK_M that is a positive whole number"),
        (lambda one: one["config"].update(BLOCK_K="128"), "no BLOCK_K that is a positive whole number"),
        (lambda one: one["config"].update(BLOCK_N=-64), "no BLOCK_N that is a positive whole number"),
        (lambda one: one.update(evidence={}), "no m that is a positive whole number"),
        (lambda one: one["evidence"].update(problem="m=16"), "no m that is a positive whole number"),
        (lambda one: one["evidence"]["problem"].update(k=1024.0), "no k that is a positive whole number"),
    ],
)
def test_a_winner_that_was_damaged_by_hand_is_refused_in_a_line(tmp_path, harm, said):
    one = copy.deepcopy(matmul())
    harm(one)
    with pytest.raises(InputError, match=said):
        lookup_table(written(tmp_path, one), H100)


def test_a_file_of_a_later_version_is_told_from_one_that_is_none(tmp_path):
    with pytest.raises(InputError, match="its schema is version 2, this one reads 1"):
        read_winners(written(tmp_path, matmul(), schema="joulecast.winners/2"))
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="no JSON"):
        read_winners(tmp_path / "deep.json")
    (tmp_path / "marked.json").write_text("\ufeff" + written(tmp_path, matmul()).read_text())
    assert len(read_winners(tmp_path / "marked.json")) == 1


def test_a_size_that_is_no_number_is_no_winner_for_any():
    for bucket in ("k=\u00b2,m=16,n=1024", "k=" + "9" * 400 + ",m=16,n=1024", "junk"):
        one = Winner("matmul", bucket, "fp16", H100, "driver", TILE, {})
        assert best_for([one], "matmul", {"m": 16, "n": 1024, "k": 1024}, "fp16", H100) is None


def test_a_measured_winner_comes_before_a_predicted_one_of_the_same_device(tmp_path):
    # by its key "H100-SXM-80GB", the name that predictions carry, stands first in the file
    file = written(tmp_path, matmul("H100-SXM-80GB", measured=False, BLOCK_M=32), matmul(BLOCK_M=64))
    found = best_for(read_winners(file), "matmul", {"m": 16, "n": 1024, "k": 1024}, "fp16", H100)
    assert found.config["BLOCK_M"] == 64
    ((entry,),) = lookup_table(file, H100).values()
    assert entry["BLOCK_M"] == 64


def test_inductor_gets_the_winners_of_its_own_device_and_clocks(tmp_path):
    file = written(tmp_path, matmul(A100, BLOCK_M=32), matmul(policy="1410 MHz", BLOCK_M=64), matmul(k=1000))
    table = lookup_table(file, H100)
    ((key, (entry,)),) = table.items()
    assert key.startswith(f"{H100}+")
    assert entry["BLOCK_M"] == 16
    assert entry["EVEN_K"] is False  # 1000 is no multiple of 128: Inductor would mask by its own smaller block
    ((entry,),) = lookup_table(file, H100, policy="1410 MHz").values()
    assert (entry["BLOCK_M"], entry["EVEN_K"]) == (64, True)
    with pytest.raises(InputError, match=r"no winner of matmul in fp16 or bf16 for NVIDIA L4"):
        lookup_table(file, "NVIDIA L4")


def test_inductor_takes_the_entries(tmp_path, monkeypatch):
    from torch._inductor import config
    from torch._inductor.kernel.mm import mm_template
    from torch._inductor.virtualized import V

    file = written(tmp_path, matmul())
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no NVIDIA GPU here"):
            use_in_inductor(file)
    before = V.choices
    monkeypatch.setattr(config.lookup_table, "table", None)
    try:
        assert use_in_inductor(file, device=H100) == 1
        ((entry,),) = config.lookup_table.table.values()
        assert entry["template_id"] == mm_template.uid
    finally:
        V.set_choices_handler(before)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with pytest.raises(InputError, match=r"known for torch 2\.10 to 2\.14, this is 2\.99\.0"):
        use_in_inductor(file, device=H100)


def test_files_for_vllm_hold_what_is_of_their_device_and_clocks_alone(tmp_path):
    file = written(
        tmp_path, experts(A100, BLOCK_SIZE_M=128), experts(policy="1410 MHz", BLOCK_SIZE_M=32),
        experts("H100-SXM-80GB", measured=False, at="2027", BLOCK_SIZE_M=64), experts(),
    )  # fmt: skip
    (path,) = write_vllm(file, tmp_path, device_name=H100)
    # of the entries of one number of tokens the measured one stays; no key but numbers of tokens, as SGLang wants it
    assert json.loads(path.read_text()) == {"64": EXPERTS}
    with pytest.raises(InputError, match="no winner of fused_moe for NVIDIA L4"):
        write_vllm(file, tmp_path, device_name="NVIDIA L4")
    (tmp_path / "predicted").mkdir()
    predicted = written(tmp_path / "predicted", experts("H100-SXM-80GB"))
    with pytest.raises(InputError, match="H100-SXM-80GB is the catalogue's name"):
        write_vllm(predicted, tmp_path)


@pytest.mark.parametrize("device", ["NVIDIA H200", "NVIDIA H200 NVL"])
def test_vllm_looks_for_one_name_of_all_h200(tmp_path, device):
    (path,) = write_vllm(written(tmp_path, experts(device)), tmp_path)
    assert path.name == "E=8,N=14336,device_name=NVIDIA_H200.json"


def test_a_file_of_vllm_keeps_its_other_entries(tmp_path):
    path = tmp_path / "E=8,N=14336,device_name=NVIDIA_H100_80GB_HBM3.json"
    other = {**EXPERTS, "num_stages": 4}
    path.write_text(json.dumps({"triton_version": "3.4.0", "128": other, "64": other}))
    write_vllm(written(tmp_path, experts(), experts(tokens=8)), tmp_path)
    held = json.loads(path.read_text())
    assert held == {"triton_version": "3.4.0", "8": EXPERTS, "64": EXPERTS, "128": other}
    path.write_text("{")
    with pytest.raises(InputError, match="no JSON: move it away"):
        write_vllm(written(tmp_path, experts()), tmp_path)
    assert path.read_text() == "{"


def test_winners_that_several_processes_add_at_once_are_all_kept(tmp_path):
    script = tmp_path / "add.py"
    script.write_text(
        textwrap.dedent("""
        import json, sys, time
        from pathlib import Path
        from joulecast.tuning.exits import winners
        from joulecast.tuning.exits.winners import Winner, add_winner
        name, file = sys.argv[1:]
        winners.winner_of = lambda found: Winner(found, "m=1", "fp16", "a GPU", "driver", {}, {"measured": True})
        while not Path(file).with_name("go").exists():
            time.sleep(0.001)
        for number in range(20):
            add_winner(file, f"{name} {number}")
    """)
    )
    file = tmp_path / "winners.json"
    running = [subprocess.Popen([sys.executable, str(script), str(number), str(file)]) for number in range(3)]
    (tmp_path / "go").touch()
    assert [one.wait() for one in running] == [0, 0, 0]
    assert len(read_winners(file)) == 60


@pytest.mark.parametrize(
    ("operator", "shapes", "said"),
    [
        ("matmul", [(2, 3, 8), (5, 9)], r"a\[\.\.\., k\] and b\[n, k\], not a\[2, 3, 8\] and b\[5, 9\]"),
        ("matmul", [(8,), (8,)], "not a"),
        ("matmul", [(), (5, 8)], "not a"),
        ("softmax", [()], r"softmax takes x\[\.\.\., n\], not x\[\]"),
        ("rms_norm", [(4, 8), (9,)], "rms_norm takes"),
        ("layer_norm", [(4, 8), (8,), (1, 8)], r"x\[\.\.\., n\] and weight\[n\] and bias\[n\]"),
    ],
)
def test_tensors_that_do_not_go_together_are_refused_as_a_graph_is_traced_too(tmp_path, operator, shapes, said):
    call = torch_operator(operator, written(tmp_path), namespace="joulecast_exits")
    for device in ("cpu", "meta"):
        with pytest.raises(InputError, match=said):
            call(*(torch.ones(shape, device=device) for shape in shapes))


def test_an_operator_takes_one_device_and_format(tmp_path):
    call = torch_operator("matmul", written(tmp_path), namespace="joulecast_exits")
    with pytest.raises(InputError, match="one device, not a on cpu, b on meta"):
        call(torch.ones(4, 8), torch.ones(5, 8, device="meta"))
    with pytest.raises(InputError, match=r"one format, not torch\.float16 and torch\.float32"):
        call(torch.ones(4, 8, dtype=torch.float16), torch.ones(5, 8))


@pytest.mark.parametrize("rows", [(2, 3), (0,), ()])
@pytest.mark.parametrize(("operator", "others"), [("matmul", [(5, 8)]), ("softmax", []), ("layer_norm", [(8,), (8,)])])
def test_operators_keep_the_rules_of_custom_operators(tmp_path, operator, others, rows):
    call = torch_operator(operator, written(tmp_path), namespace="joulecast_exits")
    given = [torch.randn(*rows, 8), *(torch.randn(shape) for shape in others)]
    torch.library.opcheck(call, tuple(given))
    if len(rows) == 1:
        torch.library.opcheck(call, (torch.randn(8, 3).t(), *given[1:]))
