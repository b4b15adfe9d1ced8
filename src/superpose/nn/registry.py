"""What a class of modules is: which of its tensors are bound, and where their inputs lie."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from superpose.errors import SuperposeError
from superpose.nn.forms.table import Table
from superpose.nn.layer import Layer
from superpose.nn.layout import Along, Layout

if TYPE_CHECKING:
    from superpose.nn.options import Options

InputDims = Mapping[str, int]  # of each bound tensor: the dimension along which its inputs lie

FORMS: dict[type[nn.Module] | str, InputDims | type[Layer]] = {}
COMPUTES = ("forward", "_conv_forward")


class Declared(Layer):
    """A module of which `register` told which tensors are bound: its own forward runs."""

    reads_once = True

    @classmethod
    def layouts(cls, module: nn.Module, options: Options) -> dict[str, Layout]:
        return {name: Along(dim) for name, dim in (input_dims(module) or {}).items()}


class InTurn(Declared):
    """Modules whose kernels cannot be mapped over rows: the tasks of a batch run in turn."""

    one_by_one = True


def register(kind: type[nn.Module] | str, form: InputDims | type[Layer]) -> None:
    """Declare which tensors of a class of modules are bound, and where their inputs lie.

    Dimensions are counted from the end: −1 is PyTorch's (outputs, inputs), for `x @ W.T`, and −2 is
    (inputs, outputs), for `x @ W`. Those before them, such as experts, belong to the outputs: all
    experts have one context. The module's own `forward` runs with W·C(k); parameters that are not
    named, such as biases, are private. `{}` is a table: nothing is bound, and it is shared.

    The class stands for its subclasses, too. One of a package that need not be installed is given
    by package and name, "transformers.Conv1D". Instead of dimensions, a subclass of `Layer` may be
    given, which says how rows of many tasks are computed more quickly, or what else it is.

    >>> import torch
    >>> import superpose as sp
    >>> class Experts(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.weight = nn.Parameter(torch.randn(4, 8, 3))  # (experts, inputs, outputs)
    ...
    ...     def forward(self, x):
    ...         return (x @ self.weight).mean(0)
    >>> register(Experts, {"weight": -2})
    >>> sp.superpose(nn.Sequential(Experts()), tasks=2).summary().superposed
    ['0.weight']
    """
    if not (isinstance(kind, str) or (isinstance(kind, type) and issubclass(kind, nn.Module))):
        raise SuperposeError(
            f"{kind!r} is no class of modules: register the class itself, as in "
            'sp.nn.register(Experts, {"weight": -1})'
        )
    if isinstance(form, Mapping):
        form = dict(form)
        for tensor, dim in form.items():
            if not isinstance(tensor, str) or type(dim) is not int or dim >= 0:
                raise SuperposeError(
                    f"{class_name(kind)}: {tensor!r}: {dim!r}: give the name of a tensor, and the "
                    "dimension of its inputs counted from the end: -1 for (outputs, inputs), -2 "
                    "for (inputs, outputs)"
                )
    elif not (isinstance(form, type) and issubclass(form, Layer)):
        raise SuperposeError(
            f"{class_name(kind)}: {form!r} tells no tensors that are bound: give them with the "
            'dimension of their inputs, as in {"weight": -1}'
        )
    library = isinstance(kind, str) or kind.__module__.partition(".")[0] in ("torch", "superpose")
    if not library:
        FORMS[kind] = form  # what a user declares can be corrected
    elif FORMS.setdefault(kind, form) != form:
        raise SuperposeError(
            f"{class_name(kind)} is registered already, with {told(FORMS[kind])}: register a "
            "subclass of it"
        )


class Declaration(NamedTuple):
    """A form, and the class that it was declared for, which may be a base of a module's."""

    kind: type[nn.Module]
    form: InputDims | type[Layer]
    by_name: bool  # its package need not be installed, and may be of any version


def declaration(module: nn.Module) -> Declaration | None:
    """The declaration of a module's class, or of the nearest of its bases."""
    for base in type(module).__mro__:
        if base in FORMS:
            return Declaration(base, FORMS[base], by_name=False)
        name = f"{base.__module__.partition('.')[0]}.{base.__name__}"
        if name in FORMS:
            return Declaration(base, FORMS[name], by_name=True)
    return None


def form_of(module: nn.Module) -> type[Layer] | None:
    """The form of a module; None if nothing is declared, or it computes something else.

    A subclass with a forward pass of its own has a form that runs it on the task's tensors, if it
    keeps the weight in PyTorch's shape; but not attention and recurrent layers.
    """
    found = declaration(module)
    if found is None or not computes_by_class(module):
        return None
    if isinstance(found.form, Mapping):
        dims = input_dims(module)
        if dims:
            return InTurn if isinstance(module, (nn.RNNCellBase, nn.Bilinear)) else Declared
        return None if dims is None else Table
    if computes_as(module, found.kind):
        return found.form
    if issubclass(found.form, Table):
        return Table
    if not found.form.binds or keeps_weight(module):
        return cast(type[Layer], _running_its_own(cast(Any, found.form)))
    return None


@functools.cache
def _running_its_own(form: Any) -> Any:
    """The form of a subclass that computes something else: its own forward runs."""
    kept = ("layouts", "statistics", "binds", "runs_by_task")
    members: dict[str, Any] = {
        name: next(vars(one)[name] for one in form.__mro__ if name in vars(one)) for name in kept
    }
    members["reads_once"] = True
    members["_made_by"] = functools.partial(_running_its_own, form)
    return type(f"Own{form.__name__}", (Layer,), members)


def input_dims(module: nn.Module, path: str | None = None) -> dict[str, int] | None:
    """The dimensions declared for a module's tensors; None if nothing was.

    A class of another package, known by its name, may have other tensors in another version: then
    nothing is known of it.
    """
    found = declaration(module)
    if found is None or not isinstance(found.form, Mapping):
        return None
    own, missing = module._parameters, object()
    for tensor, dim in found.form.items():
        there_is = own.get(tensor, getattr(module, tensor, missing))  # or made from others
        if there_is is None or (isinstance(there_is, Tensor) and -dim <= there_is.ndim):
            continue
        if found.by_name:
            return None
        there = ", ".join(f"{n} {tuple(t.shape)}" for n, t in own.items() if t is not None)
        is_tensor = isinstance(there_is, Tensor)
        what = f"no dimension {dim} of {tensor!r}" if is_tensor else f"no tensor {tensor!r}"
        raise SuperposeError(
            f"{class_name(found.kind)} was registered with {told(found.form)}, and "
            f"{type(module).__name__ if path is None else repr(path)} has {what}; it has "
            f"{there or 'none'}"
        )
    return {t: dim for t, dim in found.form.items() if t not in own or own[t] is not None}


def computes_as(module: nn.Module, plain: type[nn.Module]) -> bool:
    """Whether a module computes what PyTorch's `plain` does: a subclass may do something else."""
    own = type(module)
    return all(getattr(own, name, None) is getattr(plain, name, None) for name in COMPUTES)


def computes_by_class(module: nn.Module) -> bool:
    """Whether a module's class says what it computes, from tensors that it keeps.

    It does not if a forward was set on the module itself, or if its weights are made from other
    tensors (parametrised, pruned).
    """
    attributes = vars(module)
    made = any(
        isinstance(value, Tensor) and ("weight" in name or "bias" in name)
        for name, value in attributes.items()
    )
    return not any(n in attributes for n in COMPUTES) and not made and not is_parametrized(module)


def keeps_weight(module: Any) -> bool:
    """Whether the weight is of numbers, in PyTorch's shape: quantised ones are not."""
    if isinstance(module, nn.Linear):
        shape: tuple[int, ...] = (module.out_features, module.in_features)
    elif isinstance(module, nn.modules.conv._ConvNd):
        sides = (module.out_channels, module.in_channels)
        first, second = reversed(sides) if module.transposed else sides
        shape = (first, second // module.groups, *module.kernel_size)
    else:
        return False
    weight = module._parameters.get("weight")
    return weight is not None and weight.is_floating_point() and weight.shape == shape


def class_name(kind: type[nn.Module] | str) -> str:
    """The name of a class in files and messages.

    >>> class_name(nn.Linear), class_name("transformers.Conv1D")
    ('Linear', 'Conv1D')
    """
    return kind.rpartition(".")[2] if isinstance(kind, str) else kind.__name__


def told(form: InputDims | type[Layer]) -> str:
    """A form as it is written in a call of `register`.

    >>> told({"weight": -1})
    '{"weight": -1}'
    """
    if not isinstance(form, Mapping):
        return form.__name__
    return "{" + ", ".join(f'"{tensor}": {dim}' for tensor, dim in form.items()) + "}"
