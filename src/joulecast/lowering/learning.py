"""Which weights of a model learn, and how far gradients have to go for them."""

from __future__ import annotations

from dataclasses import replace

from joulecast.bounds.dtypes import dtype
from joulecast.errors import InputError
from joulecast.lowering.recipe import Recipe
from joulecast.lowering.rows import WEIGHTED, Row, weights_of, whole
from joulecast.workloads.kinds import plain_op
from joulecast.workloads.table import Workload


class Learning:
    """Which operations hold weights that learn, and which a gradient passes through."""

    def __init__(self, rows: list[Row], recipe: Recipe, forward: Workload) -> None:
        self.recipe = recipe
        self.name = forward.name
        self.rows = rows
        self.layers = float(forward.info.get("num_layers") or 1)
        self.frozen = min(recipe.frozen_layers / self.layers, 1.0)
        self.first = next((row.order for row in rows if row.kind in WEIGHTED), -1)
        self.last = max((row.order for row in rows if row.kind in ("gemm", "conv2d")), default=0)
        self.biased = frozenset(forward.biased)

    def with_adapters(self) -> list[Row]:
        """The forward pass, with LoRA's two products and a sum beside each of its targets."""
        if self.recipe.trainable != "lora":
            return self.rows
        out = []
        rank = float(self.recipe.lora_rank)
        adapted = [min(row.columns["n"], row.columns["k"]) for row in self.rows if self._adapted(row)]
        if not adapted:
            raise InputError(
                f"LoRA adapts {', '.join(self.recipe.lora_targets)}, and {self.name} has none of them: name its own "
                "products by lora_targets, or train all or the head"
            )
        if rank > max(adapted):
            raise InputError(
                f"lora_rank must be at most {max(adapted):,.0f}, the size of what it adapts, got {rank:,.0f}"
            )
        for row in self.rows:
            out.append(row)
            if not self._adapted(row):
                continue
            c = row.columns
            plain = "bf16" if dtype(c["dtype"]).activation_bytes < 2 or c["dtype"].startswith("w") else c["dtype"]
            down = whole("gemm", {"m": c["m"], "n": rank, "k": c["k"], "batch": c["batch"], "dtype": plain})
            up = whole("gemm", {"m": c["m"], "n": c["n"], "k": rank, "batch": c["batch"], "dtype": plain})
            total = {"op": "add", "elements": c["m"] * c["n"], "inputs": 2.0, "dtype": plain}
            out.append(replace(row, columns=down, layer=f"{row.layer}.lora_a", shard="none"))
            out.append(replace(row, columns=up, layer=f"{row.layer}.lora_b"))
            out.append(
                Row("elementwise", whole("elementwise", total), f"{row.layer}.lora", row.count, "out", row.order)
            )
        return out

    def _adapted(self, row: Row) -> bool:
        return row.kind == "gemm" and row.layer.rpartition(".")[2] in self.recipe.lora_targets

    def weights(self, row: Row) -> float:
        """Share of the runs of an operation whose weights learn."""
        how = self.recipe.trainable
        if how == "lora":
            return 1.0 if ".lora_" in row.layer else 0.0
        if how == "head":
            return 1.0 if row.order == self.last and row.kind in ("gemm", "conv2d") else 0.0
        return self.reached(row)

    def reached(self, row: Row) -> float:
        """Share of the runs of an operation whose result gets a gradient."""
        if self.recipe.trainable == "head":
            return 1.0 if row.order >= self.last else 0.0
        if not self.frozen:
            return 1.0
        if "*" in row.layer:
            return 1.0 - self.frozen
        return 1.0 if row.order > self._first_layer() else 0.0

    def data(self, row: Row) -> float:
        """Share of the runs of an operation whose input needs a gradient: all but what reads the model's input."""
        if row.kind == "gather" or (row.order == self.first and self.recipe.trainable != "lora"):
            return 0.0
        if self.recipe.trainable == "head":
            return 1.0 if row.order > self.last else 0.0
        return self.reached(row)

    def _first_layer(self) -> int:
        return min((row.order for row in self.rows if "*" in row.layer), default=-1)

    @property
    def added(self) -> float:
        """Parameters that LoRA adds."""
        if self.recipe.trainable != "lora":
            return 0.0
        rank = self.recipe.lora_rank
        adapted = [row for row in self.rows if self._adapted(row)]
        return float(sum(row.count * rank * (row.columns["k"] + row.columns["n"]) for row in adapted))

    def trained(self, parameters: float, added: float) -> float:
        """Parameters that learn."""
        how = self.recipe.trainable
        if how == "lora":
            return added
        if how == "head":
            head = next((row for row in self.rows if row.order == self.last), None)
            return 0.0 if head is None else weights_of(head)
        frozen = sum(
            (1.0 - self.reached(row)) * row.count * weights_of(row) for row in self.rows if row.kind in WEIGHTED
        )
        return max(parameters - frozen, 0.0)

    @property
    def tensors(self) -> float:
        """Tensors of weights that learn: one an operation with weights, a norm, and a bias."""
        total = 0.0
        for row in self.rows:
            norm = row.kind == "row_reduction" and plain_op(row.columns["op"]) in (
                "layer_norm",
                "rms_norm",
                "batch_norm",
            )
            if row.kind in WEIGHTED or norm:
                both = 2.0 if row.layer in self.biased or (norm and plain_op(row.columns["op"]) != "rms_norm") else 1.0
                total += self.weights(row) * row.count * both
        return max(total, 1.0)
