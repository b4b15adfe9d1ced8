"""The laws over modules that nobody here wrote: every class of PyTorch's own module database.

python benchmarks/foreign.py [CLASS …]   # some minutes; writes results/models/modules.json

Each module runs behind a linear layer that scales its input, so that all of them have something to
superpose, and by itself where it has weights that are bound. For each case: the identity family
gives the plain outputs bit for bit; a task read out computes what the task does; rows of many tasks
have what they have alone, grouped, and direct where that is declared; a task that has not begun is
its base, whatever another learns; a file keeps all of it. A case is `right`; `refused` with a
sentence of ours; or `wrong`, other values or an error that is not ours.
"""

import copy
import importlib
import itertools
import json
import sys
import tempfile
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import superpose as sp
from superpose.model.batch import check_returned, rows_of

OUT = Path(__file__).parents[1] / "results/models/modules.json"
NO_LAYER = "has no layer to superpose"
WHERE = BEFORE, AFTER, ALONE = "behind a layer", "before a layer", "alone"


class Scaled(nn.Module):
    """A module whose input a linear layer scales, by which its sign and range stay."""

    def __init__(self, module: nn.Module, features: int) -> None:
        super().__init__()
        self.scale, self.module = nn.Linear(features, features), module

    def forward(self, x: Tensor, *inputs: Any, **options: Any) -> Any:
        return self.module(x * self.scale(x).sigmoid(), *inputs, **options)


class Followed(nn.Module):
    """A module whose output is scaled, for those that are given whole numbers."""

    def __init__(self, module: nn.Module, features: int) -> None:
        super().__init__()
        self.module, self.scale = module, nn.Linear(features, features)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        y = self.module(*inputs, **options)
        return y * self.scale(y).sigmoid()


class Case(NamedTuple):
    name: str  # of the class
    told: str
    net: nn.Module
    given: tuple[Any, Any]
    options: dict[str, Any]  # of `superpose`


def cases(names: list[str]) -> Iterator[Case]:
    try:
        importlib.import_module("expecttest")  # PyTorch's tests import it; these need it not
    except ImportError:
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        kind = info.module_cls
        if names and kind.__name__ not in names:
            continue
        for training in (False, True):
            torch.manual_seed(0)
            every = info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=False, training=training
            )
            for place, one in enumerate(every):
                made = one.constructor_input
                inputs, options = one.forward_input.args, one.forward_input.kwargs
                for where in WHERE:
                    torch.manual_seed(1)
                    net: nn.Module = kind(*made.args, **made.kwargs).train(training)
                    inputs, options = one.forward_input.args, one.forward_input.kwargs
                    try:
                        y = net(*inputs, **options)  # which gives lazy modules their size
                    except RuntimeError:
                        continue  # PyTorch's own case does not run
                    features = {BEFORE: _features(inputs), AFTER: _features((y,)), ALONE: 0}[where]
                    if features is None or (where == AFTER and _features(inputs) is not None):
                        continue
                    if features:
                        net = (Scaled if where == BEFORE else Followed)(net, features)
                    own = {"private_layers": ["module"]} if where == AFTER and made else {}
                    mode = "training" if training else "evaluation"
                    told = f"{place} {one.desc}, {mode}, {where}"
                    yield Case(kind.__name__, told, net.train(training), (inputs, options), own)


def _features(given: Any) -> int | None:
    """The size of the last dimension of the first tensor, if it is of real numbers."""
    first = given[0] if given else None
    if not isinstance(first, Tensor) or not first.is_floating_point() or not first.ndim:
        return None
    return first.shape[-1]


def outputs(run: Callable[..., Any], given: Any, **more: Any) -> list[Tensor]:
    inputs, options = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, given)
    torch.manual_seed(2)
    return [
        x.detach() for x in tree_leaves(run(*inputs, **options, **more)) if isinstance(x, Tensor)
    ]


def same(one: list[Tensor], other: list[Tensor], exactly: bool = False) -> bool:
    tolerance = {"rtol": 0, "atol": 0} if exactly else {"rtol": 1e-4, "atol": 1e-5}
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.allclose(a, b, **tolerance, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


def apart(model: sp.Superposed) -> sp.Superposed:
    """So that what tasks have for themselves differs."""
    model.begin(*model.tasks)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for task in model.tasks:
            for parameter in model.private_parameters(task):
                parameter.add_(0.1 * torch.rand(parameter.shape, generator=generator))
    return model


def identity(net: nn.Module, given: Any, own: Any) -> str | None:
    model = sp.superpose(net, "identity", tasks=2, **own)
    return (
        None if same(outputs(model, given, task=1), outputs(net, given), True) else "other values"
    )


def read_out(net: nn.Module, given: Any, own: Any) -> str | None:
    model = apart(sp.superpose(net, tasks=3, **own))
    each = [outputs(model, given, task=task) for task in range(3)]
    for task in range(3):
        plain = sp.unsuperpose(apart(sp.superpose(net, tasks=3, **own)), task)
        if not same(outputs(plain, given), each[task]):
            return "a task read out is another"
    return None


def mixed(net: nn.Module, given: Any, own: Any) -> str | None:
    """Nothing is compared if the rows of the plain network are not each by itself."""
    inputs, options = given
    model = apart(sp.superpose(net, tasks=3, **own))
    checked = sp.check_mixed(model, *inputs, **options, rounds=1)
    if "grouped" in checked.why:
        return f"grouped: {checked.why['grouped']}"
    if model.mixed == "direct" and "direct" in checked.why:
        return f"direct: {checked.why['direct']}"
    return None


def base(net: nn.Module, given: Any, own: Any) -> str | None:
    model = sp.superpose(net.eval(), tasks=2, base=True, **own)
    frozen = copy.deepcopy(net).requires_grad_(False)  # PyTorch multiplies by others as it likes
    with torch.no_grad():
        start = outputs(frozen, given)
        if not same(outputs(model, given, task=1), start, True):
            return "a task that has not begun is not its base"
    model.begin(0)
    optimiser = torch.optim.SGD(model.train().parameters(), 0.1)
    inputs, options = given
    learned = [x for x in tree_leaves(model(*inputs, **options, task=0)) if isinstance(x, Tensor)]
    sum(x.abs().sum() for x in learned if x.requires_grad).backward()  # type: ignore[union-attr]
    optimiser.step()
    with torch.no_grad():
        moved = not same(outputs(model.eval(), given, task=1), start, True)
    return "a task moved another, which has not begun" if moved else None


def kept(net: nn.Module, given: Any, own: Any) -> str | None:
    model = apart(sp.superpose(net, tasks=3, **own))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        sp.save(model, path)
        again = sp.load(path, net).train(model.training)
    for task in range(3):
        if not same(outputs(again, given, task=task), outputs(model, given, task=task), True):
            return "the file is another model"
    return None


LAWS = {"identity": identity, "read out": read_out, "mixed": mixed, "base": base, "kept": kept}


def rows_by_themselves(case: Case) -> bool:
    """Whether the plain network takes rows, first or where PyTorch documents them, one by one."""
    net, given = case.net, case.given
    model = sp.superpose(net, "identity", tasks=2, **case.options)
    try:
        batch = rows_of(model, *given)
        whole = outputs(net, given)
        alone = [outputs(net, batch.take(torch.tensor([row]))) for row in range(batch.rows)]
        dims = [check_returned(model, one, 1) for one in alone]
    except Exception:  # no batch
        return False
    if batch.rows < 2:
        return False
    columns = zip(zip(*alone, strict=True), dims[0], strict=True)
    return same([torch.cat(column, dim) for column, dim in columns if dim is not None], whole)


def judged(case: Case, law: str) -> tuple[str, str]:
    """`right`, `refused` or `wrong`, and why."""
    try:
        wrong = LAWS[law](copy.deepcopy(case.net), case.given, case.options)
    except sp.SuperposeError as error:
        return "refused", str(error)
    except Exception as error:  # which is the result
        return "wrong", f"{type(error).__name__}: {error}"
    return ("right", "") if wrong is None else ("wrong", wrong)


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = []
    for name, every in itertools.groupby(cases(names), lambda case: case.name):
        rows.append(judged_class(name, every))
        told = "".join(f"\n  {why}\n    {case}" for why, case in rows[-1]["why"].items())
        print(f"{name}: {rows[-1]['result']}, {rows[-1]['cases']} cases{told}", flush=True)
    if not names:
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")


def judged_class(name: str, every: Iterable[Case]) -> dict[str, Any]:
    """How often each law is right, refused or wrong, and the first case of each reason."""
    laws: dict[str, Counter[str]] = {law: Counter() for law in LAWS}
    why: dict[str, str] = {}
    count = 0
    for case in every:
        try:
            by_row = rows_by_themselves(case)
        except sp.SuperposeError as error:
            if NO_LAYER not in str(error):
                why.setdefault(f"refused: {error}", case.told)
            continue
        count += 1
        for law in LAWS if by_row else [law for law in LAWS if law != "mixed"]:
            found, reason = judged(case, law)
            laws[law][found] += 1
            if reason:
                why.setdefault(f"{law}, {found}: {reason.splitlines()[0]}", case.told)
    met = {found for counts in laws.values() for found in counts}
    result = next((one for one in ("wrong", "refused", "right") if one in met), "refused")
    return {"class": name, "result": result, "cases": count} | laws | {"why": why}


if __name__ == "__main__":
    main(sys.argv[1:])
