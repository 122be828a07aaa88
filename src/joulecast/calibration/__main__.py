"""``python -m joulecast.calibration --data DIR``: rebuild the shipped coefficients."""

from __future__ import annotations

import argparse
from importlib import resources
from pathlib import Path

from joulecast.calibration.build import STAGES, build
from joulecast.calibration.forecast import build_forecasts


def main() -> None:
    """Read the command line and rebuild."""
    parser = argparse.ArgumentParser(prog="python -m joulecast.calibration", description=__doc__)
    shipped = Path(str(resources.files("joulecast.coefficients") / "data"))
    parser.add_argument("--data", type=Path, required=True, help="folder of measured tables")
    parser.add_argument("--out", type=Path, default=shipped, help="folder of coefficient files (the shipped ones)")
    stages = (*STAGES, "forecast")
    parser.add_argument("--stage", action="append", choices=stages, help="only this stage; repeatable")
    asked = parser.parse_args()
    chosen = tuple(asked.stage or stages)
    if set(chosen) & set(STAGES):
        build(asked.data, asked.out, chosen, tell=tell)
    if "forecast" in chosen:
        build_forecasts(asked.data, asked.out, lambda data, out, say: build(data, out, STAGES, say), tell)


def tell(line: str) -> None:
    """Print a line of progress at once."""
    print(line, flush=True)


if __name__ == "__main__":
    main()
