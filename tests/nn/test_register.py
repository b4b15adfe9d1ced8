"""`sp.nn.register`: which tensors of a module are bound, and along which dimension."""

import copy

import pytest
import torch
from checks import TASKS, randomise_private, rows_one_by_one
from declared import BOUND, DECLARED, Experts, Product, made, undeclared_product
from torch import nn

import superpose as sp
from superpose import tensor_file
from superpose.nn.forms.linear import Linear
from superpose.nn.registry import FORMS

declared = pytest.mark.parametrize("name", DECLARED)


@declared
def test_what_is_declared_is_bound_along_its_inputs(name):
    model = sp.superpose(made(name)[0], tasks=2)
    layers = model.superposed_layers
    bound = {f"{la.path}.{n}": b.context.dim for la in layers for n, b in la.bound.items()}
    assert bound == BOUND[name]
    assert sorted(model.summary().superposed) == sorted(bound)
    assert model.summary().shared == []


@declared
def test_the_gradient_is_that_of_the_plain_network_bound(name):
    """d/dW of f(x; W C) is (d/dW' f(x; W')) Cᵀ at W' = W C, in the declared orientation."""
    net, x = made(name)
    model = sp.superpose(net, "rotation", tasks=2).double()
    plain = sp.unsuperpose(model, 1)
    for one in (lambda z: model(z, task=1), plain):
        one(x.double()).square().sum().backward()
    for layer in model.superposed_layers:
        for tensor, (bound, at) in layer.bound.items():
            context = bound.derive(1)
            read = plain.get_parameter(f"{layer.path}.{tensor}").grad
            wanted = at.from_matrix(context.transpose().bind_weight(at.to_matrix(read)))
            torch.testing.assert_close(getattr(layer, tensor).grad, wanted)


def moved(model, x, y):
    """How much a step on task 0 moves task 1, as a share of what it moves task 0."""
    before = [model(x, task=task).detach() for task in (0, 1)]
    shared = dict(model.named_parameters())
    loss = (model(x, task=0) - y).square().mean()
    (grad,) = torch.autograd.grad(loss, [shared["0.weight"]])
    with torch.no_grad():
        shared["0.weight"] -= grad
        changes = [(model(x, task=t) - before[t]).norm() for t in (0, 1)]
    return float(changes[1] / changes[0])


def test_a_step_on_one_task_moves_another_far_less_than_its_own():
    torch.manual_seed(0)
    x, y = torch.randn(32, 2048), torch.randn(32, 64)
    model = sp.superpose(nn.Sequential(Product(2048, 64)), "binary", tasks=2)
    assert moved(model, x, y) < 0.2
    kind = undeclared_product()
    sp.nn.register(kind, {"weight": -1})  # the outputs are bound: nothing keeps tasks apart
    wrong = sp.superpose(nn.Sequential(kind(2048, 64)), "binary", tasks=2)
    assert moved(wrong, x, y) > 0.8


def test_an_undeclared_module_is_shared_with_one_warning_that_says_how_to_declare_it():
    kind = undeclared_product()
    net = nn.Sequential(kind(6, 5), kind(5, 4), nn.Linear(4, 3))
    with pytest.warns(UserWarning, match="stays? shared") as found:
        model = sp.superpose(net, tasks=4)
    (only,) = found
    told = str(only.message)
    assert told.startswith("0.weight, 1.weight stay shared by all tasks")
    assert told.count('sp.nn.register(Product, {"weight": -1})') == 1
    assert "name them in skip or private_layers" in told
    assert only.filename == __file__
    assert model.summary().shared == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert model.summary().learns == model.summary().shared
    assert model.summary().private == ["2.bias"]
    x = torch.randn(5, 6)
    randomise_private(model)
    torch.testing.assert_close(model(x, task=1), sp.unsuperpose(model, 1)(x))
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))
    skipped = sp.superpose(net, tasks=2, skip=["0", "1"])
    assert skipped.summary().private == ["2.bias"]
    own = sp.superpose(net, tasks=4, private_layers=["0", "1.weight"])
    assert own.summary().private == ["0.weight", "0.bias", "1.weight", "2.bias"]
    randomise_private(own)
    torch.testing.assert_close(own(x, task=1), sp.unsuperpose(own, 1)(x))


def test_a_network_of_undeclared_modules_alone_says_how_to_declare_them():
    kind = undeclared_product()
    with pytest.raises(sp.SuperposeError, match=r"no layer to superpose.*sp\.nn\.register\(Prod"):
        sp.superpose(nn.Sequential(kind(6, 5)), tasks=2)


def test_a_subclass_is_what_its_nearest_base_is():
    class Scaled(Product):
        def forward(self, x):
            return 2 * super().forward(x)

    class Turned(Product):
        def forward(self, x):
            return x @ self.weight.T

    sp.nn.register(Turned, {"weight": -1})
    x = torch.randn(5, 7)
    for kind, dim in ((Scaled, 7), (Turned, 4)):
        model = sp.superpose(nn.Sequential(kind(7, 4)), tasks=2)
        assert model[0].bound["weight"].context.dim == dim
        inputs = x if dim == 7 else x[:, :4]
        torch.testing.assert_close(model(inputs, task=1), sp.unsuperpose(model, 1)(inputs))


def test_a_declared_module_may_be_the_whole_network():
    net, x = Product(7, 4), torch.randn(5, 7)
    model = sp.superpose(net, tasks=2)
    assert model.summary().superposed == ["weight"]
    torch.testing.assert_close(model(x, task=1), sp.unsuperpose(model, 1)(x))


def test_a_declared_tensor_that_is_made_from_others_is_left_alone_with_a_warning():
    net = nn.Sequential(Product(6, 4), nn.Linear(4, 3))
    nn.utils.parametrizations.weight_norm(net[0])
    with pytest.warns(match="^0 stay shared by all tasks, because they were customised"):
        assert sp.superpose(net, tasks=2).summary().superposed == ["1.weight"]


def test_a_declared_tensor_may_be_none():
    class Maybe(Product):
        def __init__(self):
            super().__init__(6, 4)
            self.register_parameter("other", None)

    sp.nn.register(Maybe, {"weight": -2, "other": -1})
    model = sp.superpose(nn.Sequential(Maybe()), tasks=2)
    assert model.summary().superposed == ["0.weight"]


def test_a_declared_module_can_be_private_as_a_whole_or_shared():
    net, x = nn.Sequential(Experts(7, 6), nn.Linear(6, 3)), torch.randn(5, 7)
    model = randomise_private(sp.superpose(net, tasks=4, private_layers=["0"]))
    assert model.summary().superposed == ["1.weight"]
    assert {"0.up", "0.down", "0.shift"} <= set(model.summary().private)
    torch.testing.assert_close(model(x, task=1), sp.unsuperpose(model, 1)(x))
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))
    shared = sp.superpose(net, tasks=2, private="shared").summary()
    assert (shared.private, "0.shift" in shared.shared) == ([], True)


def test_a_declared_module_with_a_forward_set_on_it_is_left_alone_with_a_warning():
    net = nn.Sequential(Product(6, 4), nn.Linear(4, 3))
    net[0].forward = lambda x: x @ net[0].weight
    with pytest.warns(match="^0 stay shared by all tasks, because they were customised"):
        assert sp.superpose(net, tasks=2).summary().superposed == ["1.weight"]


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"wieght": -1}, r'registered with {"wieght": -1}, and Product has no tensor \'wieght\''),
        ({"weight": -3}, r"no dimension -3 of 'weight'; it has weight \(6, 5\), bias \(5,\)"),
        ({"bias": -2}, "no dimension -2 of 'bias'"),
    ],
)
def test_a_declaration_that_does_not_fit_is_an_error(dims, message):
    kind = undeclared_product()
    sp.nn.register(kind, dims)
    with pytest.raises(sp.SuperposeError, match=message):
        sp.superpose(nn.Sequential(kind(6, 5), nn.Linear(5, 4)), tasks=2)


@pytest.mark.parametrize(
    ("kind", "form", "message"),
    [
        (nn.Linear(2, 2), {"weight": -1}, "is no class of modules: register the class itself"),
        (dict, {"weight": -1}, "is no class of modules"),
        (nn.Identity, {"weight": 1}, "Identity: 'weight': 1: .*counted from the end"),
        (nn.Identity, {"weight": True}, "'weight': True"),
        (nn.Identity, {0: -1}, "0: -1: give the name of a tensor"),
        (nn.Identity, -1, "Identity: -1 tells no tensors"),
        (nn.Identity, nn.Linear, "tells no tensors that are bound"),
        (nn.Bilinear, {"weight": -2}, r'Bilinear is registered already, with {"weight": -1}'),
        (nn.Linear, {"weight": -1}, "Linear is registered already, with Linear"),
    ],
)
def test_what_cannot_be_declared_is_an_error(kind, form, message):
    before = dict(FORMS)
    with pytest.raises(sp.SuperposeError, match=message):
        sp.nn.register(kind, form)
    assert before == FORMS


def test_declaring_the_same_again_changes_nothing():
    sp.nn.register(Product, {"weight": -2})


def test_a_declaration_is_copied():
    kind, dims = undeclared_product(), {"weight": -2}
    sp.nn.register(kind, dims)
    dims["weight"] = -1
    assert sp.superpose(nn.Sequential(kind(6, 5)), tasks=2)[0].bound["weight"].context.dim == 6


def test_a_layer_of_ones_own_is_what_a_class_becomes():
    class Tripled(nn.Linear):
        def forward(self, x):
            return 3 * super().forward(x)

    class TripledForm(Linear):
        def equation(self, own, x):
            return 3 * super().equation(own, x)

    sp.nn.register(Tripled, TripledForm)
    model, x = sp.superpose(nn.Sequential(Tripled(6, 5)), tasks=4), torch.randn(5, 6)
    assert isinstance(model[0], TripledForm)
    assert model.mixed == "grouped"  # nothing says that it may be direct
    randomise_private(model)
    torch.testing.assert_close(model(x, task=1), sp.unsuperpose(model, 1)(x))
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))


def test_declared_modules_have_no_complex_form():
    with pytest.raises(sp.SuperposeError, match="Product '0' has no complex-valued form"):
        sp.superpose(nn.Sequential(Product(6, 5)), "complex", tasks=2)


def saved(net, path):
    sp.save(sp.superpose(net, tasks=2), path)
    return path


def test_a_file_tells_what_has_to_be_declared(tmp_path):
    kind = undeclared_product()
    sp.nn.register(kind, {"weight": -2})
    path = saved(nn.Sequential(kind(6, 6), kind(6, 6)), tmp_path / "many.safetensors")
    header, _ = tensor_file.read(path)
    assert header["forms"] == [
        {"class": "Product", "input_dims": {"weight": -2}, "layers": ["0", "1"]}
    ]
    other = undeclared_product()
    net = nn.Sequential(other(6, 6), other(6, 6))
    call = r'call sp\.nn\.register\(Product, {"weight": -2}\)'
    with pytest.raises(sp.SuperposeError, match=f"'0' was bound by .*not declared here: {call}"):
        sp.load(path, net)
    sp.nn.register(other, {"weight": -1})
    with pytest.raises(sp.SuperposeError, match=f'declared with {{"weight": -1}} here: {call}'):
        sp.load(path, net)


def test_a_file_of_a_shared_module_is_not_read_as_bound(tmp_path):
    kind = undeclared_product()
    net = nn.Sequential(kind(6, 6), nn.Linear(6, 6))
    with pytest.warns(match="stays? shared"):
        path = saved(net, tmp_path / "many.safetensors")
    with pytest.warns(match="stays? shared"):
        sp.load(path, net)
    sp.nn.register(kind, {"weight": -2})
    with pytest.raises(sp.SuperposeError, match=r"'0' is declared with .* was shared by all tasks"):
        sp.load(path, net)


def test_files_of_other_layers_record_no_forms(tmp_path):
    header, _ = tensor_file.read(saved(nn.Linear(4, 4), tmp_path / "many.safetensors"))
    assert header["forms"] == []


def test_names_of_classes_are_those_of_transformers_alone():
    class MixtralExperts(nn.Module):  # of this module
        def __init__(self):
            super().__init__()
            self.gate_up_proj = nn.Parameter(torch.randn(2, 4, 4))
            self.down_proj = nn.Parameter(torch.randn(2, 4, 4))

        def forward(self, x):
            return x + (self.gate_up_proj @ self.down_proj).sum()

    net = nn.Sequential(nn.Linear(4, 4), MixtralExperts())
    with pytest.warns(match="1.down_proj, 1.gate_up_proj stay shared|1.gate_up_proj stays shared"):
        sp.superpose(net, tasks=2)
    MixtralExperts.__module__ = "transformers.models.mixtral.modeling_mixtral"
    superposed = sp.superpose(net, tasks=2).summary().superposed
    assert superposed == ["0.weight", "1.gate_up_proj", "1.down_proj"]
    changed = copy.deepcopy(net)
    del changed[1].down_proj  # as another version might have it
    with pytest.warns(match="^1 stay shared"):
        sp.superpose(changed, tasks=2)
