"""Law 9: with a base, a task is the pretrained network until it learns, and can be it again."""

import copy

import pytest
import torch
from cases import REAL
from checks import rows_one_by_one
from networks import LAYERS, MLP, First, cnn, mlp
from torch import nn

import superpose as sp
from superpose.model import layers, private_state

OPTIONS = {
    "base": {},
    "rank": {"rank": 1},
    "centred by task": {"centre": "task"},
    "centred by rows": {"centre": "rows"},
    "small layers": {"min_inputs": 15},
    "all": {"rank": 1, "centre": "task", "min_inputs": 15, "private_layers": ["layers.5"]},
}


def learn(model, x, task, steps=3, lr=0.05):
    optimiser = torch.optim.Adam(model.parameters(), lr)
    for _ in range(steps):
        optimiser.zero_grad()
        (model(x, task=task) - task).square().mean().backward()
        optimiser.step()
    return model


def scramble(model):
    """Weights, and what tasks have for themselves, that no one has learned."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in layers(model):
            for name in layer.contexts:
                layer.stored(name).copy_(
                    0.3 * torch.randn(layer.stored(name).shape, generator=generator)
                )
        for task in model.tasks:
            for name, tensor in model.private_tensors(task).items():
                if tensor.is_floating_point() and "running_var" not in name:
                    tensor += 0.3 * torch.rand(tensor.shape, generator=generator)
    private_state(model).begin(model.superposition.names.values())
    return model


@pytest.mark.parametrize("family", REAL)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_task_that_nothing_was_learned_for_is_the_base(family, name):
    net, x = mlp(), torch.randn(6, 12)
    model = sp.superpose(net, family, tasks=3, base=True, **OPTIONS[name])
    for task in range(3):
        assert torch.equal(model(x, task=task), net(x))
    learn(model, x, 0)
    learn(model, x, 1)
    for mode in (True, False):
        model.train(mode)
        assert torch.equal(model(x, task=2), net(x))
        with torch.no_grad():
            assert torch.equal(model(x, task=2), net(x))
    for task in (0, 1):
        assert (model(x, task=task) - net(x)).abs().max() > 1e-2
    rows = [0, 2, 1, 2, 2, 0]
    mixed = model(x, task=rows)
    torch.testing.assert_close(mixed, rows_one_by_one(model, rows, x))
    torch.testing.assert_close(mixed[[1, 3, 4]], net(x)[[1, 3, 4]])
    assert torch.equal(sp.unsuperpose(model, 2)(x), net(x))
    assert torch.equal(sp.unsuperpose(model)(x), net(x))
    for task in (0, 1):
        torch.testing.assert_close(sp.unsuperpose(model, task)(x), model(x, task=task))


def test_a_task_that_was_removed_and_comes_again_is_the_base():
    net, x = mlp(), torch.randn(6, 12)
    model = sp.superpose(net, "hadamard", tasks=["a", "b"], base=True)
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    for task in ("a", "b"):
        optimiser.zero_grad()
        model(x, task=task).square().mean().backward()
        optimiser.step()
    assert (model(x, task="a") - net(x)).abs().max() > 1e-2
    model.remove_task("a")
    model.add_task("a")
    assert torch.equal(model(x, task="a"), net(x))


def test_the_first_step_is_that_of_the_network_alone():
    """A task begins at the base, and its first gradient is that of the base, whatever W holds."""
    net, x = mlp().double(), torch.randn(6, 12, dtype=torch.float64)
    model = sp.superpose(net, "identity", tasks=3, base=True)
    learn(model, x, 1)
    model.zero_grad()
    model(x, task=2).square().mean().backward()
    net(x).square().mean().backward()
    for index in (1, 3, 5):
        torch.testing.assert_close(model.layers[index].weight.grad, net.layers[index].weight.grad)
    private = model.private_parameters(2)[0].grad
    biases = torch.cat([net.layers[index].bias.grad for index in (1, 3, 5)])
    torch.testing.assert_close(private, biases)
    assert (model(x, task=2) - net(x)).abs().max() > 1e-3  # which began with the gradient


def test_a_pass_without_a_gradient_does_not_begin_a_task():
    net, x = mlp(), torch.randn(6, 12)
    model = sp.superpose(net, tasks=2, base=True)
    learn(model, x, 0)
    model.train()
    model(x, task=1)
    assert torch.equal(model(x, task=1), net(x))
    model(x, task=[0, 1, 0, 1, 1, 0]).sum().backward()
    assert not torch.equal(model(x, task=1), net(x))


def test_what_a_task_has_for_itself_begins_it_too():
    """Whoever writes to it, or learns by `torch.func`, needs no gradient that comes back."""
    net, x = mlp(), torch.randn(6, 12)
    model = learn(sp.superpose(net, tasks=2, base=True), x, 0)
    with torch.no_grad():
        model.private_tensors(1)["layers.5.bias"] += 1
    other = (model(x, task=1) - net(x) - 1).abs().max()
    assert other > 1e-3


def test_the_weights_of_one_task_begin_another_only_when_it_learns_even_if_nothing_is_private():
    net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    x = torch.randn(5, 6)
    model = learn(sp.superpose(net, tasks=2, base=True), x, 0)
    assert torch.equal(model(x, task=1), net(x))
    learn(model, x, 1)
    assert not torch.equal(model(x, task=1), net(x))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    "options",
    [{}, {"rank": 1}, {"centre": "rows"}, {"conv": "channel"}],
    ids=["base", "rank", "rows", "channel"],
)
def test_every_layer_has_a_base(name, options):
    torch.manual_seed(0)
    net, shape = LAYERS[name]()
    net, x = net.double().eval(), torch.randn(5, *shape, dtype=torch.float64)
    if name == "conv2d depthwise" and "rank" in options:
        with pytest.raises(sp.SuperposeError, match=r"rank=1: .* in no superposed layer"):
            sp.superpose(net, "hadamard", tasks=3, base=True, **options)
        return
    model = sp.superpose(net, "hadamard", tasks=3, base=True, **options).eval()
    assert torch.equal(model(x, task=1), net(x))
    scramble(model)
    for task in range(3):
        torch.testing.assert_close(sp.unsuperpose(model, task)(x), model(x, task=task))
    assert (model(x, task=0) - model(x, task=1)).abs().max() > 1e-2
    assert (model(x, task=0) - net(x)).abs().max() > 1e-2
    torch.testing.assert_close(sp.unsuperpose(model)(x), net(x), rtol=0, atol=0)
    rows = [2, 0, 1, 1, 0]
    torch.testing.assert_close(model(x, task=rows), rows_one_by_one(model, rows, x))


def test_the_effective_weight_is_the_base_the_bound_change_and_the_low_rank_part():
    net = nn.Sequential(nn.Linear(8, 6))
    model = scramble(sp.superpose(net, "hadamard", tasks=2, base=True, rank=2, centre="task"))
    own, layer = model.private_tensors(1), model[0]
    context = layer.contexts["weight"].derive(1)
    bound = context.bind_weight(layer.stored("weight").detach())
    x = torch.randn(3, 8)
    expected = (
        x @ net[0].weight.T
        + (x - own["0.weight_mean"]) @ bound.T
        + x @ own["0.weight_down"].T @ own["0.weight_up"].T
        + own["0.bias"]
    )
    torch.testing.assert_close(model.eval()(x, task=1), expected)


def test_everything_shared_is_frozen():
    torch.manual_seed(0)

    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
            self.hidden, self.head = nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x):
            return self.head(self.norm(self.hidden(self.table(x)).relu()))

    net, x = Text(), torch.randint(11, (4, 5))
    model = sp.superpose(net, "hadamard", tasks=2, base=True)
    assert torch.equal(model(x, task=1), net(x))
    assert model.head.bases["weight"] is model.table.weight
    assert model.head.weight is not model.table.weight
    before = model.table.weight.clone()
    optimiser = torch.optim.SGD(model.parameters(), 0.5, weight_decay=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        model(x, task=0).square().mean().backward()
        optimiser.step()
    assert torch.equal(model.table.weight, before)
    assert torch.equal(model(x, task=1), net(x))
    assert model.summary().superposed == ["hidden.weight", "head.weight"]


def test_statistics_are_each_tasks_own():
    torch.manual_seed(0)
    net, x = cnn(), torch.randn(4, 3, 6, 6)
    model = sp.superpose(net, "hadamard", tasks=2, base=True)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimiser.zero_grad()
        model(x, task=0).square().mean().backward()
        optimiser.step()
    assert torch.equal(model.eval()(x, task=1), net.eval()(x))


def test_contexts_are_learned_beside_a_base():
    net, x = mlp(), torch.randn(6, 12)
    model = sp.superpose(net, "phase", tasks=2, base=True, learnable=True)
    assert torch.equal(model(x, task=1), net(x))
    learn(model, x, 0)
    assert model.private_tensors(0)["layers.3.weight_context"].abs().max() > 1e-3
    assert torch.equal(model(x, task=1), net(x))


def test_copies_and_states_know_which_tasks_have_begun():
    net, x = mlp(), torch.randn(6, 12)
    model = learn(sp.superpose(net, tasks=3, base=True), x, 0).eval()
    twin = copy.deepcopy(model)
    other = sp.superpose(mlp(), tasks=3, base=True).eval()
    learn(other, x, 1)  # forgotten when a state is loaded
    other.load_state_dict(model.state_dict())
    for same in (twin, other.eval()):
        for task in range(3):
            assert torch.equal(same(x, task=task), model(x, task=task))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which the compiler looks at
def test_one_graph_before_and_one_after_a_task_begins():
    torch._dynamo.reset()
    net, x = mlp(), torch.randn(6, 12)
    model = sp.superpose(net, "hadamard", tasks=3, base=True)
    compiled = torch.compile(model, backend="eager")
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    for task in (0, 1):
        torch.testing.assert_close(compiled(x, task=task), net(x))
        for _ in range(2):
            optimiser.zero_grad()
            compiled(x, task=task).square().mean().backward()
            optimiser.step()
        assert (model(x, task=task) - net(x)).abs().max() > 1e-2
        torch.testing.assert_close(compiled(x, task=task), model(x, task=task))
    torch.testing.assert_close(compiled(x, task=2), net(x))


def test_a_base_may_be_another_network():
    net, base, x = mlp(), mlp(), torch.randn(6, 12)
    with torch.no_grad():
        for parameter in base.parameters():
            parameter += 0.1
    model = sp.superpose(net, tasks=2, base=base)
    assert torch.equal(model(x, task=0), base(x))
    with pytest.raises(sp.SuperposeError, match=r"layers\.1\.weight is \(16, 12\).*\(20, 12\)"):
        sp.superpose(net, base=MLP(12, 20, 5, bias=True))
    with pytest.raises(sp.SuperposeError, match=r"layers\.1\.bias is \(16,\).* missing"):
        sp.superpose(net, base=mlp(bias=False))
    with pytest.raises(sp.SuperposeError, match=r"the network has no layers\.1\.bias"):
        sp.superpose(mlp(bias=False), base=net)
    with pytest.raises(sp.SuperposeError, match="base is a str: give True"):
        sp.superpose(net, base="mlp")
    with pytest.raises(sp.SuperposeError, match="the base is superposed"):
        sp.superpose(net, base=model)


class Scaled(nn.Module):
    """A network that computes with a buffer which is not in its state."""

    def __init__(self, by, size=12):
        super().__init__()
        self.linear = nn.Linear(12, 4)
        self.register_buffer("by", torch.full((size,), by), persistent=False)

    def forward(self, x):
        return self.linear(x * self.by[:1])


def test_a_base_brings_the_buffers_that_are_not_in_its_state():
    base, x = Scaled(2.0), torch.randn(6, 12)
    model = sp.superpose(Scaled(1.0), tasks=2, base=base)
    assert torch.equal(model(x, task=0), base(x))
    base.by.zero_()
    assert model(x, task=0).ne(base(x)).any()  # they are a copy
    with pytest.raises(sp.SuperposeError, match="the buffer by is not the same"):
        sp.superpose(Scaled(1.0), tasks=2, base=Scaled(2.0, size=3))


def test_a_base_of_another_type_of_number_is_refused():
    with pytest.raises(sp.SuperposeError, match=r"float32 in the network .*float64 in the base"):
        sp.superpose(mlp(), tasks=2, base=mlp().double())


def test_a_base_whose_tied_weights_differ_is_refused():
    class Tied(nn.Module):
        def __init__(self, tied):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            if tied:
                self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    with pytest.raises(sp.SuperposeError, match=r"b\.weight and a\.weight are one tensor"):
        sp.superpose(Tied(True), base=Tied(False))


def test_what_a_base_cannot_go_with():
    for private in ("none", "shared"):
        with pytest.raises(sp.SuperposeError, match=f"private='{private}': with a base"):
            sp.superpose(mlp(), base=True, private=private)
    for option in ({"base": True}, {"rank": 1}, {"centre": "task"}):
        with pytest.raises(sp.SuperposeError, match="use 'phase'"):
            sp.superpose(mlp(), "complex", **option)


def test_a_network_that_transformers_loaded_is_not_scrambled_unasked():
    class Config:
        _name_or_path = "some/model"

    net = mlp()
    net.config = Config()
    with pytest.warns(UserWarning, match=r"loaded from 'some/model'.*base=True"):
        scrambled = sp.superpose(net)
    assert "scrambled" in str(scrambled.summary())
    for said in ({"base": True}, {"base": False}, {"family": "identity"}):
        model = sp.superpose(net, **said)
        assert ("scrambled" in model.summary().start) == ("base" in said and not said["base"])


def test_frozen_weights_are_not_bound_but_where_it_is_asked_for():
    net, x = mlp(), torch.randn(6, 12)
    net.layers[1].weight.requires_grad_(False)
    net.layers[3].requires_grad_(False)
    model = sp.superpose(net, tasks=2, base=True)
    assert model.summary().superposed == ["layers.5.weight"]
    assert "layers.3.weight" in model.summary().shared
    assert "layers.1.bias" in model.summary().private
    assert type(model.layers[3]) is not nn.Linear  # its bias is a task's own, and frozen
    learn(model, x, 0)
    assert torch.equal(model.layers[3].weight, net.layers[3].weight)
    asked = sp.superpose(net, tasks=2, base=True, bind_frozen=True)
    assert len(asked.summary().superposed) == 3
    learn(asked, x, 0)
    assert asked.layers[3].stored("weight").abs().max() > 0
    net.requires_grad_(False)
    with pytest.raises(sp.SuperposeError, match=r"requires_grad=False.*bind_frozen=True"):
        sp.superpose(net, base=True)


class LoraLinear(nn.Module):
    """As PEFT has it: a frozen layer, and an adapter beside it that learns."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base_layer.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, base_layer.out_features, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


def test_adapters_that_others_put_there_are_what_is_superposed():
    torch.manual_seed(0)
    net, x = (
        nn.Sequential(LoraLinear(nn.Linear(6, 5)), nn.ReLU(), nn.Linear(5, 3)),
        torch.ones(2, 6),
    )
    model = sp.superpose(net, tasks=2, base=True)
    bound = [f"0.lora_{side}.default.weight" for side in "AB"]
    assert model.summary().superposed == [*bound, "2.weight"]
    assert type(model[0].base_layer).__name__ == "Linear"
    assert torch.equal(model(x, task=1), net(x))
    learn(model, x, 0)
    assert torch.equal(model(x, task=1), net(x))
    assert torch.equal(model[0].base_layer.weight, net[0].base_layer.weight)


def test_a_recurrent_layer_learns_its_change():
    torch.manual_seed(0)
    net, x = First(nn.LSTM(6, 8, batch_first=True)), torch.randn(3, 4, 6)
    model = learn(sp.superpose(net, "hadamard", tasks=2, base=True), x, 0)
    assert (model(x, task=0) - net(x)).abs().max() > 1e-2
    assert torch.equal(model(x, task=1), net(x))
    torch.testing.assert_close(sp.unsuperpose(model, 0)(x), model(x, task=0))


def test_a_task_whose_weights_were_written_is_begun_by_hand():
    net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    model, x = sp.superpose(net, tasks=["a", "b"], base=True), torch.randn(5, 6)
    with torch.no_grad():
        model[0].weight += 0.1
    assert torch.equal(model(x, task="a"), net(x))
    model.begin("a")
    assert not torch.equal(model(x, task="a"), net(x))
    assert torch.equal(model(x, task="b"), net(x))


@pytest.mark.parametrize("bias", [False, True])
def test_learning_by_functions_of_the_parameters_begins_a_task_or_says_what_to_do(bias):
    net = nn.Sequential(nn.Linear(12, 8, bias=bias), nn.ReLU(), nn.Linear(8, 3, bias=bias))
    model, x = sp.superpose(net, tasks=["cats", "dogs"], base=True), torch.randn(6, 12)
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def loss(parameters):
        found = torch.func.functional_call(model, parameters, (x,), {"task": "cats"})
        return (found - 1).square().mean()

    def lowered(parameters):
        gradients = torch.func.grad(loss)(parameters)
        return {name: p - 0.1 * gradients[name] for name, p in parameters.items()}

    if not bias:
        with pytest.warns(UserWarning, match=r"stays its base: call model.begin\('cats'\)"):
            assert loss(lowered(trained)) == loss(trained)
        model.begin("cats")
    first = loss(trained)
    for _ in range(2):
        trained = lowered(trained)
    assert loss(trained) < first


def test_statistics_that_are_skipped_are_refused():
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    with pytest.raises(sp.SuperposeError, match=r"skip: '1' keeps running statistics.*out of skip"):
        sp.superpose(net, base=True, skip=["1"])
    sp.superpose(net, skip=["1"])


def test_small_layers_that_are_frozen_stay_as_they_are():
    net = nn.Sequential(nn.Linear(6, 80), nn.ReLU(), nn.Linear(80, 3))
    net[0].requires_grad_(False)
    model = sp.superpose(net, base=True, min_inputs=64)
    assert "0.weight" in model.summary().shared
    assert model.summary().superposed == ["2.weight"]


@pytest.mark.parametrize(
    ("made", "then"),
    [
        (torch.float32, torch.float64),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.bfloat16),
    ],
)
def test_a_task_is_its_base_in_another_type_of_number(made, then, tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to(made)
    model = sp.superpose(net, "hadamard", tasks=2, base=True, rank=2)
    model(torch.randn(4, 6, dtype=made), task=0).square().mean().backward()
    torch.optim.SGD(model.parameters(), 0.5).step()
    model.to(then)
    cost, x = model.cost().stored, torch.randn(5, 6, dtype=then)
    plain = net.to(then)
    model.add_task("new")
    sp.save(model, tmp_path / "many.safetensors")
    fresh = sp.superpose(plain, "hadamard", tasks=[0, 1, "new"], base=True, rank=2)
    fresh.load_state_dict(model.state_dict())
    loaded = sp.load(tmp_path / "many.safetensors", copy.deepcopy(plain))
    for one in (model, fresh, loaded):
        assert torch.equal(one(x, task="new"), plain(x))
        assert torch.equal(one(x, task=1), plain(x))
        assert not torch.allclose(one(x, task=0), plain(x))
    assert model.cost().stored == cost


def test_a_base_that_was_frozen_is_frozen_when_it_is_given_back():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    net[0].requires_grad_(False)
    wanted = {name: p.requires_grad for name, p in net.named_parameters()}
    model = sp.superpose(net, tasks=2, base=True, bind_frozen=True)
    for task in (None, 0):
        plain = sp.unsuperpose(model, task)
        assert {name: p.requires_grad for name, p in plain.named_parameters()} == wanted
