"""What a class of modules is: which of its tensors are bound, and where their inputs lie.

PyTorch's own classes are declared in `forms.py`, those of `transformers` in `experts.py`, and a
user's wherever the user calls `register`. Conversion, packing, projection and the complex-valued
networks all look here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.nn.layer import Layer

InputDims = Mapping[str, int]  # of each bound tensor: the dimension along which its inputs lie

FORMS: dict[type[nn.Module] | str, InputDims | type[Layer]] = {}


def register(kind: type[nn.Module] | str, form: InputDims | type[Layer]) -> None:
    """Declare which tensors of a class of modules are bound, and where their inputs lie.

    Dimensions are counted from the end: −1 is PyTorch's (outputs, inputs), for `x @ W.T`, and −2 is
    (inputs, outputs), for `x @ W`. Those before them, such as experts, belong to the outputs: all
    experts have one context. The module's own `forward` runs with W C(k); parameters that are not
    named, such as biases, are private. `{}` is a table: nothing is bound, and its matrices are
    shared.

    The class stands for its subclasses, too. One of a package that need not be installed is given
    by package and name, "transformers.Conv1D". Instead of dimensions, a `Layer` may be given, which
    then computes what the class does.

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
    """What was declared for the class of a module, or for the nearest of its bases."""
    for base in type(module).__mro__:
        if base in FORMS:
            return Declaration(base, FORMS[base], by_name=False)
        name = f"{base.__module__.partition('.')[0]}.{base.__name__}"
        if name in FORMS:
            return Declaration(base, FORMS[name], by_name=True)
    return None


def input_dims(layer: str, module: nn.Module) -> dict[str, int] | None:
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
            f"{class_name(found.kind)} was registered with {told(found.form)}, and {layer!r} has "
            f"{what}; it has {there or 'none'}"
        )
    return {t: dim for t, dim in found.form.items() if t not in own or own[t] is not None}


def class_name(kind: type[nn.Module] | str) -> str:
    """What a class is called in files and messages.

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
