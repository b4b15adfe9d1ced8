"""One program for all tasks, as `torch.export` makes it."""

import inspect
import subprocess
import sys

import cases
import onnxruntime
import pytest
import torch
from checks import randomise_private, rows_one_by_one
from networks import Relative, cnn, mlp
from torch import nn

import superpose as sp

ROWS = torch.tensor([2, 0, 1, 2, 3])
OTHERS = torch.tensor([3, 1, 0, 0, 2, 1, 3])
ROWS_OF = {False: ROWS, True: torch.tensor([2, 0, 1, 2, 3, 1, 0])}
BATCH = torch.export.Dim("batch")


class Words(nn.Module):
    """A table that can be private, and a scale beside the layers."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.scale = nn.Parameter(torch.randn(8))
        self.out = nn.Linear(8, 4)

    def forward(self, ids):
        x = torch.cat([self.token.expand(ids.shape[0], -1, -1), self.words(ids)], 1)
        return self.out(x * self.scale + self.out.weight.dtype.itemsize)


NETWORKS = {
    "mlp": (mlp, {}, lambda rows: torch.randn(rows, 12)),
    "cnn": (cnn, {}, lambda rows: torch.randn(rows, 3, 6, 6)),
    "cnn by channel": (cnn, {"conv": "channel"}, lambda rows: torch.randn(rows, 3, 6, 6)),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
        {},
        lambda rows: torch.randn(rows, 6, 16),
    ),
    "recurrent": (
        lambda: nn.GRU(8, 6, batch_first=True), {}, lambda rows: torch.randn(rows, 4, 8)
    ),
    "learned": (mlp, {"learnable": True}, lambda rows: torch.randn(rows, 12)),
    "shared": (mlp, {"private": "shared"}, lambda rows: torch.randn(rows, 12)),
    "words": (Words, {"private_layers": ["token", "scale"]}, lambda n: torch.randint(9, (n, 2))),
}  # fmt: skip


def superposed(network, family="binary", **options):
    torch.manual_seed(0)
    return randomise_private(sp.superpose(network(), family, tasks=4, **options)).eval()


def direct(model):
    model.mixed = "direct"
    return model.eval()


def exported(model, x, task, fixed=False):
    """A program of any number of rows, or of as many as x has."""
    first = next(iter(inspect.signature(model.forward).parameters))
    if task.ndim:
        model.mixed = "direct"
    shapes = {first: {0: BATCH}, "task": {0: BATCH} if task.ndim else None}
    shapes = None if fixed and task.ndim else shapes
    return torch.export.export(sp.exportable(model), (x,), {"task": task}, dynamic_shapes=shapes)


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def assert_serves_all_tasks(model, inputs, fixed=False):
    x = inputs(7)
    program = exported(model, inputs(7 if fixed else 5), ROWS_OF[fixed], fixed).module()
    assert_same(program(x, task=OTHERS), model(x, task=OTHERS))
    assert_serves_each_task(model, inputs)


def assert_serves_each_task(model, inputs):
    x, of_one = inputs(7), exported(model, inputs(5), torch.tensor(1)).module()
    for task in model.tasks:
        assert_same(of_one(x, task=torch.tensor(task)), model(x, task=task))


@pytest.mark.parametrize("family", cases.NAMES)
def test_every_family(family):
    model = superposed(mlp, family)
    x = torch.randn(1, 12)
    assert family == "identity" or not torch.equal(model(x, task=0), model(x, task=3))
    assert_serves_all_tasks(model, NETWORKS["mlp"][2])


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name):
    """Where rows are mapped, a program is of as many rows as there were."""
    network, options, inputs = NETWORKS[name]
    model = superposed(network, **options)
    if name == "recurrent":
        assert_serves_each_task(model, inputs)
        with pytest.raises(sp.SuperposeError, match=r"one after the other.*one task for the batch"):
            exported(model, inputs(5), ROWS)
    else:
        assert_serves_all_tasks(model, inputs, fixed=name in ("cnn", "encoder", "words"))


def test_tasks_keep_their_numbers():
    model = sp.superpose(mlp(), tasks=["a", "b", "c"])
    model.remove_task("b")
    x = torch.randn(2, 12)
    program = sp.exportable(direct(model))
    assert_same(program(x, task=torch.tensor([2, 0])), model(x, task=["c", "a"]))
    for unknown in (1, 3):
        with pytest.raises(IndexError, match="out of range"):
            program(x, task=torch.tensor(unknown))
    with pytest.raises(sp.SuperposeError, match=r"task='a': .*torch\.tensor"):
        program(x, task="a")


def test_whole_numbers_that_name_tasks_are_names():
    model = sp.superpose(mlp(), tasks=[1, 2, "three", 5])
    x = torch.randn(3, 12)
    rows = torch.tensor([5, 1, 2])
    program = sp.exportable(direct(model))
    for task in (1, 2, 5):
        assert_same(program(x, task=torch.tensor(task)), model(x, task=task))
    assert_same(program(x, task=rows), model(x, task=rows))
    for unknown in (0, 4):
        with pytest.raises(IndexError, match="out of range"):
            program(x, task=torch.tensor(unknown))


def test_a_program_has_each_number_once():
    model = superposed(Words, private_layers=["scale"])
    x = torch.randint(9, (5, 2))
    program = exported(model, x, ROWS, fixed=True)
    learned = {p.data_ptr(): p.numel() for p in model.parameters() if p.requires_grad}
    contexts = 4 * 8
    places = 4
    kept = sum(tensor.numel() for tensor in program.state_dict.values())
    assert kept == sum(learned.values()) + contexts + places


def test_a_program_runs_without_the_library(tmp_path):
    model = superposed(mlp)
    x = torch.randn(7, 12)
    torch.export.save(exported(model, x[:5], ROWS), tmp_path / "many.pt2")
    torch.save((x, OTHERS), tmp_path / "given.pt")
    script = """if True:
        import sys
        sys.modules["superpose"] = None
        import torch
        x, task = torch.load("given.pt")
        torch.save(torch.export.load("many.pt2").module()(x, task=task), "found.pt")
    """
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
    assert_same(torch.load(tmp_path / "found.pt"), model(x, task=OTHERS))


def test_the_model_stays_as_it_was_and_lends_its_weights():
    model = sp.superpose(cnn(), tasks=2).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    program = sp.exportable(model)
    assert model.training
    assert not any(module.training for module in program.modules())
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(model.state_dict()[name], own) for name, own in before.items())
    assert program.network[0].weight is model[0].weight
    model(torch.randn(4, 3, 6, 6), task=1).sum().backward()
    assert model[0].weight.grad is not None


def test_packed_models():
    nets = {name: mlp() for name in ("a", "b")}
    with torch.no_grad():
        for parameter in nets["b"].parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    packed = sp.pack(nets, method="delta", base=nets["a"])
    x = torch.randn(5, 12)
    program = exported(packed, x, torch.tensor([1, 0, 0, 1, 1])).module()
    assert_same(program(x, task=torch.tensor([0, 1, 1, 0, 0])), packed(x, task=list("abbaa")))


def test_only_superposed_models():
    with pytest.raises(sp.SuperposeError, match=r"MLP is not superposed: torch\.export takes it"):
        sp.exportable(mlp())


def test_a_batch_that_is_grouped_by_task_is_refused():
    model = sp.superpose(
        Relative(nn.LayerNorm(4)), tasks=4, skip=["keys"], private_layers=["table"]
    )
    x = torch.randn(5, 3, 4)
    with pytest.raises(
        sp.SuperposeError, match=r"this model's are grouped: .*with one task for the batch"
    ):
        torch.export.export(sp.exportable(model), (x,), {"task": ROWS})
    of_one = torch.export.export(sp.exportable(model), (x,), {"task": torch.tensor(1)}).module()
    assert_same(of_one(x, task=torch.tensor(2)), model(x, task=2))


def test_as_many_tokens_as_rows():
    model = superposed(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    x, tasks = torch.randn(3, 3, 4), torch.tensor([0, 1, 1])
    program = torch.export.export(sp.exportable(direct(model)), (x,), {"task": tasks}).module()
    others = torch.tensor([3, 0, 2])
    assert_same(program(x, task=others), rows_one_by_one(model, others, x))


BASED = {
    "mlp": (mlp, (12,), {}),
    "mlp, all": (mlp, (12,), {"rank": 1, "centre": "task", "recognise": True}),
    "cnn": (cnn, (3, 6, 6), {"conv": "channel", "rank": 1}),
}


def begun(name):
    """A model with a base, of which tasks 0 and 2 have begun to learn."""
    torch.manual_seed(0)
    make, shape, options = BASED[name]
    net = make().eval()
    model = sp.superpose(net, "hadamard", tasks=4, base=True, **options).train()
    model.begin(0, 2)
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for task in (0, 2):
        optimiser.zero_grad()
        model(torch.rand(6, *shape), task=task).square().mean().backward()
        optimiser.step()
    return model.eval(), net, lambda rows: torch.randn(rows, *shape)


@pytest.mark.parametrize("name", BASED)
def test_programs_know_which_tasks_have_begun(name):
    model, net, inputs = begun(name)
    x = inputs(5)
    program = torch.export.export(sp.exportable(direct(model)), (x,), {"task": ROWS}).module()
    assert_same(program(x, task=ROWS), model(x, task=ROWS))
    assert_same(program(x, task=torch.tensor([1, 3, 3, 1, 1])), net(x))
    one = torch.export.export(sp.exportable(model), (x,), {"task": torch.tensor(1)}).module()
    for task in range(4):
        assert_same(one(x, task=torch.tensor(task)), model(x, task=task))
    assert (model(x, task=0) - net(x)).abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore")  # of the exporter, about itself
@pytest.mark.parametrize("name", BASED)
def test_onnx_with_a_base(name, tmp_path):
    model, net, inputs = begun(name)
    x = inputs(5)
    torch.onnx.export(
        sp.exportable(direct(model)), (x,), tmp_path / "many.onnx", kwargs={"task": ROWS},
        dynamo=True, verbose=False,
    )  # fmt: skip
    session = onnxruntime.InferenceSession(tmp_path / "many.onnx")
    given, _ = (one.name for one in session.get_inputs())
    for tasks in (ROWS, OTHERS[:5], torch.tensor([1, 3, 3, 1, 1])):
        (y,) = session.run(None, {given: x.numpy(), "task": tasks.numpy()})
        assert_same(torch.from_numpy(y), model(x, task=tasks).detach())
    assert_same(torch.from_numpy(y), net(x).detach())


@pytest.mark.filterwarnings("ignore")  # of the exporter, about itself
@pytest.mark.parametrize("family", ["binary", "hadamard"])
def test_onnx(family, tmp_path):
    model = superposed(cnn, family, conv="channel")
    torch.onnx.export(
        sp.exportable(direct(model)),
        (torch.randn(5, 3, 6, 6),),
        tmp_path / "many.onnx",
        kwargs={"task": ROWS},
        dynamic_shapes={"input": {0: BATCH}, "task": {0: BATCH}},
        dynamo=True,
        verbose=False,
    )
    session = onnxruntime.InferenceSession(tmp_path / "many.onnx")
    x = torch.randn(7, 3, 6, 6)
    (y,) = session.run(None, {"input": x.numpy(), "task": OTHERS.numpy()})
    assert_same(torch.from_numpy(y), model(x, task=OTHERS).detach())
