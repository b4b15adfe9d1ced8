"""Law 9: with a base, a task is the pretrained network until it learns, and can be it again."""

import copy

import pytest
import torch
from checks import learn, scramble
from networks import MLP, cnn, mlp
from torch import nn
from torch._dynamo.testing import CompileCounter

import superpose as sp


def test_a_task_that_was_removed_and_comes_again_is_the_base():
    net, x = mlp(), torch.randn(6, 12)
    model = sp.superpose(net, "hadamard", tasks=["a", "b"], base=True)
    learn(model, x, "a", "b").eval()
    assert (model(x, task="a") - net(x)).abs().max() > 1e-2
    model.remove_task("a")
    model.add_task("a")
    assert model.begun == ["b"]
    assert torch.equal(model(x, task="a"), net(x))


def test_the_first_step_is_that_of_the_network_alone():
    """Of a task that begins when nobody has learned: its gradient is that of the base."""
    net, x = mlp().double(), torch.randn(6, 12, dtype=torch.float64)
    model = sp.superpose(net, "identity", tasks=3, base=True)
    model.begin(2)
    model(x, task=2).square().mean().backward()
    net(x).square().mean().backward()
    for index in (1, 3, 5):
        torch.testing.assert_close(model.layers[index].weight.grad, net.layers[index].weight.grad)
    private = model.private_parameters(2)[0].grad
    biases = torch.cat([net.layers[index].bias.grad for index in (1, 3, 5)])
    torch.testing.assert_close(private, biases)


def test_the_effective_weight_is_the_base_the_bound_change_and_the_low_rank_part():
    net = nn.Sequential(nn.Linear(8, 6))
    model = scramble(sp.superpose(net, "hadamard", tasks=2, base=True, rank=2, centre="task"))
    own, layer = model.private_tensors(1), model[0]
    context = layer.bound["weight"].context.derive(1)
    bound = context.bind_weight(layer.stored("weight").detach())
    x = torch.randn(3, 8)
    expected = (
        x @ net[0].weight.T
        + (x - own["0.weight_mean"]) @ bound.T
        + x @ own["0.weight_down"].T @ own["0.weight_up"].T
        + own["0.bias"]
    )
    torch.testing.assert_close(model.eval()(x, task=1), expected)


def test_statistics_are_each_tasks_own():
    torch.manual_seed(0)
    net, x = cnn(), torch.randn(4, 3, 6, 6)
    model = sp.superpose(net, "hadamard", tasks=2, base=True)
    learn(model.train(), x, 0)
    assert torch.equal(model.eval()(x, task=1), net.eval()(x))


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
    model = sp.superpose(net, "hadamard", tasks=3, base=True).eval()
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter)
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    for task in (0, 1):
        torch.testing.assert_close(compiled(x, task=task), net(x))
        model.begin(task)
        for _ in range(2):
            optimiser.zero_grad()
            compiled(x, task=task).square().mean().backward()
            optimiser.step()
        assert (model(x, task=task) - net(x)).abs().max() > 1e-2
        torch.testing.assert_close(compiled(x, task=task), model(x, task=task))
    torch.testing.assert_close(compiled(x, task=2), net(x))
    assert counter.frame_count == 2


def test_a_base_may_be_another_network():
    net, base, x = mlp(), mlp(), torch.randn(6, 12)
    with torch.no_grad():
        for parameter in base.parameters():
            parameter += 0.1
    model = sp.superpose(net, tasks=2, base=base).eval()
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
    model = sp.superpose(Scaled(1.0), tasks=2, base=base).eval()
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
    assert isinstance(model.layers[3], sp.nn.Layer)  # its bias is a task's own, and frozen
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
    model = sp.superpose(net, tasks=2, base=True).eval()
    bound = [f"0.lora_{side}.default.weight" for side in "AB"]
    assert model.summary().superposed == [*bound, "2.weight"]
    assert type(model[0].base_layer).__name__ == "Linear"
    assert torch.equal(model(x, task=1), net(x))
    learn(model, x, 0)
    assert torch.equal(model(x, task=1), net(x))
    assert torch.equal(model[0].base_layer.weight, net[0].base_layer.weight)


def test_begin_takes_several_tasks_and_says_which_there_are():
    model = sp.superpose(mlp(), tasks=["a", "b", "c"], base=True)
    model.begin("c", "a")
    assert model.begun == ["a", "c"]
    assert "tasks that have begun: a, c\n" in str(model.summary())
    with pytest.raises(sp.SuperposeError, match=r"unknown task 'd'.*'a', 'b', 'c'"):
        model.begin("d")
    with pytest.raises(sp.SuperposeError, match="give one task"):
        model.begin(["a", "b"])
    model.rename_task("a", "z")
    model.remove_task("c")
    assert model.begun == ["z"]
    open_to_all = sp.superpose(mlp(), tasks=["a", "b"])
    open_to_all.begin("a")
    assert open_to_all.begun == ["a", "b"]


def test_a_base_that_would_learn_is_refused():
    model, x = sp.superpose(mlp(), tasks=2, base=True), torch.randn(3, 12)
    model.begin(0)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    with pytest.raises(sp.SuperposeError, match=r"layers.1.weight is part of the base and would"):
        model(x, task=0)
    model.requires_grad_(True)  # which leaves the base alone
    model(x, task=0).sum().backward()
    assert model.layers[1].bases["weight"].grad is None


def test_begin_opens_what_was_written_by_hand():
    net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    model, x = sp.superpose(net, tasks=["a", "b"], base=True).eval(), torch.randn(5, 6)
    with torch.no_grad():
        model[0].weight += 0.1
    assert torch.equal(model(x, task="a"), net(x))
    model.begin("a")
    assert not torch.equal(model(x, task="a"), net(x))
    assert torch.equal(model(x, task="b"), net(x))


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
    model.begin(0)
    model(torch.randn(4, 6, dtype=made), task=0).square().mean().backward()
    torch.optim.SGD(model.parameters(), 0.5).step()
    model.to(then).eval()
    cost, x = model.cost().stored, torch.randn(5, 6, dtype=then)
    plain = net.to(then)
    model.add_task("new")
    sp.save(model, tmp_path / "many.safetensors")
    fresh = sp.superpose(plain, "hadamard", tasks=[0, 1, "new"], base=True, rank=2)
    fresh.load_state_dict(model.state_dict())
    loaded = sp.load(tmp_path / "many.safetensors", copy.deepcopy(plain))
    for one in (model, fresh.eval(), loaded.eval()):
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
