"""What a unit of work can cost on a GPU: bounds that fitted energies are held in."""

from __future__ import annotations

#: Lowest and highest energy by what is done, on a part of a 5 nm class process at the voltage of its boost clock.
#: Arithmetic in pJ a FLOP with its operands' way from the registers, special functions in pJ a result, memories in
#: pJ a byte. The bounds are wide: a factor of two to three either way of published figures (M. Horowitz, ISSCC 2014,
#: scaled by node; B. Dally, Hot Chips 2023: 0.1 to 0.4 pJ a FLOP of tensor cores; HBM 4 to 7 pJ a bit, of which the
#: later generations need the least; O'Connor et al., MICRO 2017).
ENERGY_PJ = {
    "tensor.fp64": (1.0, 15.0), "tensor.tf32": (0.3, 2.0), "tensor.fp16": (0.13, 0.9), "tensor.bf16": (0.13, 0.9),
    "tensor.fp8": (0.07, 0.5), "tensor.fp4": (0.035, 0.28), "tensor.int8": (0.06, 0.5), "tensor.int4": (0.03, 0.3),
    "cuda.fp64": (3.0, 30.0), "cuda.fp32": (0.7, 8.0), "cuda.fp16": (0.4, 5.0), "cuda.bf16": (0.4, 5.0),
    "sfu": (1.0, 40.0), "shared": (0.2, 5.0), "l2": (3.0, 45.0),
}  # fmt: skip

#: Energy of DRAM with its interface and controller. [pJ/B]
DRAM_PJ = {"HBM": (18.0, 80.0), "GDDR": (40.0, 200.0), "LPDDR": (18.0, 80.0)}

#: Power of SMs that hold blocks, over what the board may draw above idle.
ACTIVE_SHARE = (0.03, 0.5)


def energy_bounds_pj(name: str, process_nm: float, dram_type: str) -> tuple[float, float]:
    """Lowest and highest energy of a unit of work.

    Parameters
    ----------
    name : str
        ``tensor.`` or ``cuda.`` and an arithmetic, ``sfu``, ``shared``, ``l2`` or ``dram``.
    process_nm : float
        Node of the process; energies of logic go with it. [nm]
    dram_type : str
        Such as ``HBM3e``.

    Returns
    -------
    tuple of float
        [pJ/FLOP, pJ/result or pJ/B]
    """
    if name == "dram":
        kind = dram_type.upper()
        return next((limits for start, limits in DRAM_PJ.items() if kind.startswith(start)), (18.0, 200.0))
    low, high = ENERGY_PJ.get(name, (0.3, 30.0))
    return low * process_nm / 5.0, high * process_nm / 5.0
