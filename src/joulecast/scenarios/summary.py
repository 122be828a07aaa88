"""What people compare predictions by: shares, relative intervals, and energy and money for a million tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from joulecast.scenarios.prediction import PhasePrediction, Prediction

JOULES_PER_KWH = 3.6e6


def shares(parts: Mapping[str, float]) -> dict[str, float]:
    """Share of each part in the sum of all, largest first; empty where the sum is zero.

    Parameters
    ----------
    parts : mapping of str to float
        Figures of one unit, none negative.

    Returns
    -------
    dict of str to float
        In [0, 1]; parts of zero are left out.
    """
    total = math.fsum(parts.values())
    if not total > 0:
        return {}
    found = {name: value / total for name, value in parts.items() if value > 0}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def total(parts: Iterable[float]) -> float:
    """Exact sum of figures of one unit."""
    return math.fsum(parts)


def relative_half_width(value: float, interval: tuple[float, float]) -> float:
    """Half the width of an interval over the value within it; NaN where the value is zero. Dimensionless."""
    lower, upper = interval
    return (upper - lower) / (2 * value) if value else math.nan


def energy_per_million_tokens_j(prediction: Prediction | PhasePrediction) -> float:
    """Energy of all GPUs for a million tokens (or images), of the whole or of one phase. [J]"""
    return 1e6 * prediction.energy_per_token_j


def cost_per_million_tokens(prediction: Prediction | PhasePrediction, price_per_kwh: float) -> float:
    """Money for the electricity that the GPUs draw for a million tokens (or images).

    Parameters
    ----------
    prediction : Prediction or PhasePrediction
    price_per_kwh : float
        [currency/kWh]

    Returns
    -------
    float
        In the currency of the price. Cooling and the rest of the machine are not in it.
    """
    return energy_per_million_tokens_j(prediction) / JOULES_PER_KWH * price_per_kwh


def memory_shortfall_gb(prediction: Prediction) -> float:
    """Memory that one GPU lacks; 0 where the model fits. [GB]"""
    return max(prediction.memory.needed_gb - prediction.memory.available_gb, 0.0)


def over_time(prediction: Prediction, figure: str) -> float:
    """Mean over time of a figure of the phases, such as ``peak_flop_share``."""
    time_s = math.fsum(phase.time_s for phase in prediction.phases)
    if not time_s > 0:
        return math.nan
    return math.fsum(getattr(phase, figure) * phase.time_s for phase in prediction.phases) / time_s


#: Figures nearer than this are the same: clocks under a limit are solved for to less.
_SAME = 1e-4


def fastest(predictions: Sequence[Prediction]) -> Prediction:
    """The prediction of the least time; among those alike, of the least energy, and the first of these."""
    least = min(one.time_s for one in predictions) * (1 + _SAME)
    alike = [one for one in predictions if one.time_s <= least]
    energy = min(map(_energy_given_j, alike)) * (1 + _SAME)
    return next(one for one in alike if _energy_given_j(one) <= energy)


def thriftiest(predictions: Sequence[Prediction]) -> Prediction:
    """The prediction of the least energy for what is given out; among those alike, the fastest."""
    least = min(map(_energy_given_j, predictions)) * (1 + _SAME)
    return fastest([one for one in predictions if _energy_given_j(one) <= least])


def _energy_given_j(prediction: Prediction) -> float:
    """Energy a token, or of the whole run where tokens are not counted. [J]"""
    return prediction.energy_j / (prediction.tokens_out or 1.0)


def per_gpu(prediction: Prediction) -> dict[str, float]:
    """Power, energy and throughput of one GPU of the layout, on average. [W, J, 1/s]"""
    count = prediction.gpu_count
    return {
        "power_per_gpu_w": prediction.power_w / count,
        "energy_per_gpu_j": prediction.energy_j / count,
        "tokens_per_s_per_gpu": prediction.tokens_per_s / count,
    }


def traded(prediction: Prediction, against: Prediction) -> tuple[float, float]:
    """Time added and energy saved by one prediction beside another of the same work, as shares of the other's."""
    return prediction.time_s / against.time_s - 1.0, 1.0 - prediction.energy_j / against.energy_j
