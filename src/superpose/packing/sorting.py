"""Which layers of models that are packed together are private, and which are shared."""

from __future__ import annotations

import warnings

from torch import nn

from superpose import contexts
from superpose.errors import SuperposeError
from superpose.model import Superposed, build, layers
from superpose.nn.convert import Conversion
from superpose.nn.forms import kept
from superpose.nn.names import inside
from superpose.packing.sources import Sources


def private_and_shared(sources: Sources) -> tuple[list[str], list[str]]:
    """Layers and tensors that have to be private, and layers that are the same in all models."""
    net = sources.open(next(iter(sources.models)))
    with warnings.catch_warnings(action="ignore"):  # what it leaves shared may yet be private
        probe = build(net, contexts.family("identity"), {0: 0}, 0, Conversion(), Superposed)
    placed = {layer.path for layer in layers(probe)}
    tables = {name for name, m in net.named_modules() if isinstance(m, nn.Embedding)}
    owner = {key: key.rpartition(".")[0] for key in sources.shapes}
    differing = {owner[key] for key in sources.differing}
    looked_up = {m.weight.data_ptr() for m in net.modules() if isinstance(m, nn.Embedding)}
    tied = {owner[key] for key, t in net.state_dict().items() if t.data_ptr() in looked_up}
    private = sorted(differing & tied)
    for key in probe.summary().shared:
        if key not in sources.differing or owner[key] in tables:
            continue
        module = net.get_submodule(owner[key])
        if key.rpartition(".")[2] not in kept(module):
            raise SuperposeError(
                f"{key} differs between the models, and {type(module).__name__} can be neither "
                "superposed nor private: keep it the same in all models"
            )
        private.append(key)
    same = sorted({name for name in owner.values() if name in placed} - differing)
    if len(sources.models) == 1 or not differing & placed - set(private):
        # one model, or equal ones: nothing is to be told apart, and tables are kept beside it
        return sorted({*private, *(tied & placed)}), []
    apart = [n for n in same if not inside(n, differing)]
    return private, [n for n in apart if not any(inside(other, [n]) for other in differing)]
