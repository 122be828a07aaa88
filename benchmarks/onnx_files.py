"""Prices ONNX files wherever they are found: how many can be, what of their bytes can't, and how long it takes.

    pip download --no-deps -d wheels rapidocr-onnxruntime silero-vad magika nudenet
    python benchmarks/onnx_files.py wheels/*.whl --gpu a100-pcie-40gb

Files, folders and wheels are searched for `.onnx` files. Open dimensions get the sizes of the example that the message
about them gives.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import joulecast as jc

_EXAMPLE = re.compile(r"--dim (\S+)=(\d+)")


def main() -> None:
    """Print a line for each file, then how many were priced."""
    parser = argparse.ArgumentParser(description="price ONNX files in files, folders and wheels")
    parser.add_argument("places", nargs="+", type=Path)
    parser.add_argument("--gpu", default="a100-pcie-40gb")
    asked = parser.parse_args()
    priced = whole = 0
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for path in found(asked.places, Path(folder)):
            start = time.perf_counter()
            try:
                workload = opened(path)
                prediction = jc.predict(workload, asked.gpu, launch_mode="cuda_graph")
            except jc.JoulecastError as error:
                lines.append(f"{path.name}: {error}")
                continue
            priced += 1
            share = sum(prediction.unpriced.values())
            whole += not share
            print(f"{path.name:44.44s} {workload.flop('matmul') / 1e9:9.3f} GFLOP {workload.operations:7.0f} kernels"
                  f" {share:6.1%} unpriced {prediction.time_s * 1e3:9.3f} ms {prediction.energy_j:9.4f} J"
                  f"   read in {time.perf_counter() - start:5.2f} s")  # fmt: skip
    print(f"{priced} of {priced + len(lines)} files priced, {whole} of them whole")
    print(*lines, sep="\n", end="\n" if lines else "")


def found(places: list[Path], folder: Path) -> Iterator[Path]:
    """The ONNX files in files, folders and wheels (unpacked into `folder`)."""
    for place in places:
        if place.is_dir():
            yield from sorted(place.rglob("*.onnx"))
        elif zipfile.is_zipfile(place):
            with zipfile.ZipFile(place) as archive:
                for member in sorted(one for one in archive.namelist() if one.endswith(".onnx")):
                    yield Path(archive.extract(member, folder / place.stem))
        else:
            yield place


def opened(path: Path) -> jc.Workload:
    """The workload of a file; open dimensions as in the example of the message that names them."""
    dims: dict[str, int] = {}
    while True:
        try:
            return jc.workload(path, dims=dims)
        except jc.InputError as error:
            more = {name: int(size) for name, size in _EXAMPLE.findall(str(error)) if name not in dims}
            if not more:
                raise
            dims.update(more)


if __name__ == "__main__":
    main()
