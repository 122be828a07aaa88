"""Which step of a graph writes a tensor and which read it: what patterns are looked for with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from joulecast.workloads.onnx_graph import Step
from joulecast.workloads.onnx_values import Value


class Flow:
    """Writers and readers of tensors among the steps that are left.

    Parameters
    ----------
    steps : sequence of Step
    outputs : iterable of int
        Numbers of the graph's results, which are read from outside.
    """

    def __init__(self, steps: Sequence[Step], outputs: Iterable[int]) -> None:
        self.steps = [one for one in steps if not one.dead]
        self.outputs = frozenset(outputs)
        self._writer: dict[int, Step] = {}
        self._readers: dict[int, list[Step]] = {}
        for step in self.steps:
            for one in step.ins:
                if one is not None:
                    self._readers.setdefault(one.number, []).append(step)
            for one in step.outs:
                if one is not None:
                    self._writer.setdefault(one.number, step)

    def of(self, ops: str | Iterable[str]) -> list[Step]:
        """Steps left of some operators, in order."""
        names = frozenset(ops.split() if isinstance(ops, str) else ops)
        return [one for one in self.steps if one.op in names and not one.dead]

    def maker(self, value: Value | None, ops: str = "") -> Step | None:
        """The step that writes `value`, if it is one of `ops`."""
        found = self._writer.get(value.number) if value is not None else None
        if found is None or found.dead or (ops and found.op not in ops.split()):
            return None
        return found

    def readers(self, value: Value | None) -> list[Step]:
        """Steps left that read `value`, each once."""
        if value is None:
            return []
        return list({id(one): one for one in self._readers.get(value.number, []) if not one.dead}.values())

    def reader(self, value: Value | None, ops: str = "") -> Step | None:
        """The only step that reads `value`, if it is one of `ops`."""
        found = self.readers(value)
        if value is None or value.number in self.outputs or len(found) != 1:
            return None
        return found[0] if not ops or found[0].op in ops.split() else None

    def closed(self, members: Sequence[Step], last: Step) -> bool:
        """Whether nothing but `members` reads what they make, the `last` one's results aside."""
        inside = {id(one) for one in members}
        for step in members:
            if step is last:
                continue
            for one in step.outs:
                if one is not None and (
                    one.number in self.outputs or any(id(reader) not in inside for reader in self.readers(one))
                ):
                    return False
        return True

    def join(self, members: Sequence[Step], last: Step) -> None:
        """All `members` but the `last` are part of it from now on."""
        for step in members:
            if step is not last:
                step.dead = True

    def hand_over(self, step: Step, follower: Step) -> None:
        """`step` does what `follower` did, and writes its result."""
        step.outs = [follower.out, *step.outs[1:]]
        follower.dead = True
        if follower.out is not None:
            self._writer[follower.out.number] = step


def scalar(value: Value | None) -> bool:
    """Whether a value is one number, the same in every run."""
    return value is not None and value.numel == 1 and (value.fixed or value.data is not None)


def others(step: Step, value: Value) -> list[Value]:
    """What a step reads beside `value`."""
    return [one for one in step.ins if one is not None and one.number != value.number]
