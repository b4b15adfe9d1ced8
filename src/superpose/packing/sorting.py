"""Sort layers of models that are packed together: private, shared, or superposed."""

from __future__ import annotations

import warnings

from torch import nn

from superpose.errors import SuperposeError
from superpose.model import Superposed, superpose
from superpose.nn import inside
from superpose.packing.sources import Sources


def private_and_shared(sources: Sources) -> tuple[list[str], list[str]]:
    """Layers and tensors that have to be private, and layers that are equal in all models."""
    net = sources.first()
    probe = _probe(net, [])
    placed = {layer.path for layer in probe.superposed_layers}
    owner = {key: key.rpartition(".")[0] for key in sources.shapes}
    differing = {owner[key] for key in sources.differing}
    tables = {name: m.weight for name, m in net.named_modules() if isinstance(m, nn.Embedding)}
    looked_up = {table.data_ptr() for table in tables.values()}
    tied = {owner[key] for key, t in net.state_dict().items() if t.data_ptr() in looked_up}
    private = sorted(differing & tied)
    beside = [key for key in probe.summary().shared if key in sources.differing]
    private += [key for key in beside if owner[key] not in tables]
    try:
        _probe(net, private)
    except SuperposeError as error:
        raise SuperposeError(
            f"{', '.join(private)}: differs between the models, so each needs its own, and that "
            f"cannot be: {error}"
        ) from error
    if len(sources.models) == 1 or not differing & placed - set(private):
        # one model, or equal ones: nothing is to be told apart, and tables are kept beside it
        return sorted({*private, *(tied & placed)}), []
    equal = sorted({path for path in owner.values() if path in placed} - differing)
    apart = [path for path in equal if not inside(path, differing)]
    return private, [path for path in apart if not any(inside(one, [path]) for one in differing)]


def _probe(net: nn.Module, private: list[str]) -> Superposed:
    with warnings.catch_warnings(action="ignore"):  # what it leaves shared may yet be private
        return superpose(
            net, "identity", tasks=1, base=False, private_layers=private, bind_frozen=True
        )
