"""Models of mean power and of energy over the parameters of configurations, and how good they are."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.errors import MissingExtraError

Floats = npt.NDArray[np.float64]

#: Configurations within this of the fastest are the near-fastest set. [share]
NEAR = 0.15

#: Standard deviations of log energy added where a pick is made that is not measured again: its one-sided 95 % bound.
PICK_CAUTION = 1.645


@dataclass(frozen=True)
class Scores:
    """How well energies are predicted.

    Attributes
    ----------
    r2 : float
        Of log energy.
    mape : float
        Mean absolute error as a share.
    rank : float
        Spearman's correlation.
    near_rank : float
        The same among the near-fastest; NaN where they are fewer than three.
    near_r2, near_mape : float
        As above, among the near-fastest.
    regret : float
        By how much the pick among the near-fastest uses more than the best of them.
    """

    r2: float
    mape: float
    rank: float
    near_r2: float
    near_mape: float
    near_rank: float
    regret: float


def scores(predicted_j: Floats, energy_j: Floats, time_s: Floats, caution: Floats | None = None) -> Scores:
    """Scores of predicted energies.

    Parameters
    ----------
    predicted_j, energy_j, time_s : ndarray, shape (n,)
    caution : ndarray, shape (n,), optional
        Standard deviation of log energy: the pick is of the least one-sided 95 % bound.

    Returns
    -------
    Scores
    """
    near = np.flatnonzero(time_s <= (1.0 + NEAR) * time_s.min())
    logs, truth = np.log(predicted_j), np.log(energy_j)
    pick = near[int(np.argmin((logs if caution is None else logs + PICK_CAUTION * caution)[near]))]
    regret = float(energy_j[pick] / energy_j[near].min() - 1.0)
    some = len(near) >= 3
    return Scores(
        _r2(logs, truth),
        float(np.abs(predicted_j / energy_j - 1.0).mean()),
        rank_correlation(predicted_j, energy_j),
        _r2(logs[near], truth[near]) if some else float("nan"),
        float(np.abs(predicted_j / energy_j - 1.0)[near].mean()),
        rank_correlation(predicted_j[near], energy_j[near]) if some else float("nan"),
        regret,
    )


def rank_correlation(one: Floats, other: Floats) -> float:
    """Spearman's correlation; ties share their mean rank. NaN where one does not vary."""
    a, b = _ranks(one), _ranks(other)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0 else float("nan")


def with_products(numbers: Floats, most: int = 40) -> Floats:
    """Columns of logarithms with their sums and differences beside: products and ratios of tunables.

    Parameters
    ----------
    numbers : ndarray, shape (n, p)
    most : int
        Where there would be more columns, the given ones alone are returned.

    Returns
    -------
    ndarray
    """
    varying = [k for k in range(numbers.shape[1]) if np.ptp(numbers[:, k]) > 0]
    if len(varying) * len(varying) > most:
        return numbers
    pairs = [(a, b) for place, a in enumerate(varying) for b in varying[place + 1 :]]
    beside = [numbers[:, a] + sign * numbers[:, b] for a, b in pairs for sign in (1.0, -1.0)]
    return np.concatenate([numbers, np.stack(beside, axis=1)], axis=1) if beside else numbers


@dataclass(frozen=True)
class PowerModel:
    """Mean power by parameters and measured time; energy is its product with the time.

    Attributes
    ----------
    low, span : ndarray
        Of the columns in training.
    process : object
        Gaussian process on log power.
    """

    low: Floats
    span: Floats
    process: Any

    @classmethod
    def fit(cls, features: Floats, time_s: Floats, energy_j: Floats, everything: Floats) -> PowerModel:
        """A model of measured configurations.

        Parameters
        ----------
        features : ndarray, shape (n, f)
            Of the measured ones, from `described`.
        time_s, energy_j : ndarray, shape (n,)
        everything : ndarray, shape (m, f)
            Of all that are to be predicted: gives the columns their scale.

        Raises
        ------
        MissingExtraError
            Without the optional part ``tune``.
        """
        try:
            from sklearn.gaussian_process import GaussianProcessRegressor
            from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
        except ImportError:
            raise MissingExtraError("the power model of kernel search", "tune") from None
        low, high = everything.min(axis=0), everything.max(axis=0)
        span = np.where(high > low, high - low, 1.0)
        kernel = ConstantKernel(1.0, (0.05, 20.0)) * Matern(np.ones(len(low)), (0.3, 30.0), nu=1.5)
        process = GaussianProcessRegressor(
            kernel + WhiteKernel(1e-2, (1e-6, 1.0)), normalize_y=True, optimizer=_few_steps, random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # bounds that are reached are meant to hold
            process.fit((features - low) / span, np.log(energy_j / time_s))
        return cls(low, span, process)

    def predict(self, features: Floats, time_s: Floats) -> tuple[Floats, Floats]:
        """Log energy and the standard deviation of it."""
        mean, spread = self.process.predict((features - self.low) / self.span, return_std=True)
        return mean + np.log(time_s), spread


def described(features: Floats, time_s: Floats) -> Floats:
    """What a power model sees of configurations: features, their products and ratios, and the time."""
    return np.concatenate([with_products(features), np.log(time_s)[:, None]], axis=1)


def boosted(
    features: Floats, targets: Floats, seed: int, *, weights: Floats | None = None, rounds: int = 40, depth: int = 5
) -> Any:
    """Gradient boosted trees; the result's ``predict`` takes features.

    Raises
    ------
    MissingExtraError
        Without the optional part ``tune``.
    """
    try:
        import xgboost
    except ImportError:
        raise MissingExtraError("kernel search", "tune") from None
    settings = {
        "max_depth": depth, "eta": 0.15, "subsample": 0.8, "colsample_bynode": 0.6, "nthread": 1, "verbosity": 0,
        "seed": seed, "min_child_weight": 1.0 if weights is None else 0.0,
    }  # fmt: skip
    matrix = xgboost.DMatrix(np.asarray(features, dtype=np.float32), targets, weight=weights)
    return _Boosted(xgboost.train(settings, matrix, num_boost_round=rounds))


@dataclass(frozen=True)
class _Boosted:
    model: Any

    def predict(self, features: Floats) -> Floats:
        return np.asarray(self.model.inplace_predict(np.asarray(features, dtype=np.float32)), dtype=np.float64)


def _few_steps(objective: Any, start: Floats, bounds: Floats) -> tuple[Floats, float]:
    from scipy.optimize import minimize

    found = minimize(objective, start, method="L-BFGS-B", jac=True, bounds=bounds, options={"maxiter": 25})
    return found.x, float(found.fun)


def _r2(predicted: Floats, truth: Floats) -> float:
    around = truth - truth.mean()
    total = float(around @ around)
    return 1.0 - float(((predicted - truth) ** 2).sum()) / total if total > 0 else float("nan")


def _ranks(values: Floats) -> Floats:
    order = np.argsort(values, kind="stable")
    _, inverse, counts = np.unique(values[order], return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = np.empty(len(values))
    ranks[order] = (ends - (counts - 1) / 2.0)[inverse]
    return ranks
