"""Files: small, exact, and clear about everything that can be wrong with them."""

import copy
import json
import subprocess
import sys
import threading
import time

import cases
import numpy as np
import pytest
import torch
from checks import randomise_private
from networks import MLP, cnn, mlp
from safetensors.torch import load_file, save_file
from torch import nn

import superpose as sp
from superpose import tensor_file


@pytest.mark.parametrize("family", cases.NAMES)
@pytest.mark.parametrize("learnable", [False, True])
def test_a_loaded_model_gives_the_same_bits(family, learnable, tmp_path):
    if learnable and family in ("identity", "permutation", "block-rotation"):
        pytest.skip("nothing to learn, or sizes that the blocks do not divide")
    model = sp.superpose(mlp(), family, tasks=["a", "b"], seed=5, learnable=learnable)
    model.add_task("c")
    model.rename_task("a", "alpha")
    randomise_private(model)
    sp.save(model, tmp_path / "many.safetensors")
    loaded = sp.load(tmp_path / "many.safetensors", MLP(12, 16, 5, bias=True))
    x = torch.randn(4, 12)
    assert loaded.tasks == ["alpha", "b", "c"]
    for task in ("alpha", "c", ["b", "c", "alpha", "b"]):
        assert torch.equal(loaded(x, task=task), model(x, task=task))
    assert loaded.add_task("d") == "d"


def test_conversions_and_compositions_are_remembered(tmp_path):
    path = tmp_path / "m.safetensors"
    family = sp.contexts.LocalMix(sp.contexts.Phase(), 2, (1, 2, 3, 2, 1)) * sp.contexts.Binary()
    model = sp.superpose(cnn(), family, 3, skip=["0"], private_layers=["6"], conv="channel").eval()
    sp.save(randomise_private(model), path)
    loaded = sp.load(path, cnn()).eval()
    x = torch.randn(2, 3, 6, 6)
    assert loaded.superposition == model.superposition
    assert torch.equal(loaded(x, task=2), model(x, task=2))


def test_double_precision_and_what_was_compiled(tmp_path):
    path, x = tmp_path / "m.safetensors", torch.randn(4, 12).double()
    model = sp.superpose(mlp(dtype=torch.float64), "complex", tasks=2, seed=np.int64(3))
    randomise_private(model)
    sp.save(torch.compile(model, backend="eager"), path)
    loaded = sp.load(path, mlp(dtype=torch.float64))
    assert loaded.superposition.seed == 3
    assert torch.equal(loaded(x, task=1), model(x, task=1))


@pytest.mark.parametrize("letters", range(1, 17))
def test_pairs_may_lie_anywhere_in_a_file(letters, tmp_path):
    """A longer name of a task moves all that comes after it."""
    path, net = tmp_path / "m.safetensors", mlp(dtype=torch.float64)
    model = randomise_private(sp.superpose(net, "complex", tasks=["a" * letters]))
    sp.save(model, path)
    x = torch.randn(4, 12).double()
    assert torch.equal(sp.load(path, net)(x, task=0), model(x, task=0))


def test_another_process_gives_the_same_bits(tmp_path):
    model = sp.superpose(mlp(), "hadamard", tasks=3)
    x = torch.randn(4, 12)
    sp.save(model, tmp_path / "m.safetensors")
    save_file({"x": x}, tmp_path / "x.safetensors")
    script = (
        "import sys, torch, superpose as sp\n"
        "from safetensors.torch import load_file, save_file\n"
        "from superpose_lab.networks import MLP\n"
        "d = sys.argv[1]\n"
        "model = sp.load(d + '/m.safetensors', MLP(12, 16, 5, bias=True))\n"
        "x = load_file(d + '/x.safetensors')['x']\n"
        "save_file({'y': model(x, task=2).detach()}, d + '/y.safetensors')\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert torch.equal(load_file(tmp_path / "y.safetensors")["y"], model(x, task=2))


def test_fifty_tasks_cost_one_percent(tmp_path):
    net = MLP(784, 2048, 10)
    save_file(net.state_dict(), tmp_path / "plain.safetensors")
    sp.save(sp.superpose(net, tasks=50), tmp_path / "fifty.safetensors")
    sizes = {path.stem: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes["fifty"] <= 1.01 * sizes["plain"]


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "m.safetensors"
    sp.save(sp.superpose(mlp(), tasks=["a", "b"]), path)
    return path


def edit(path, change):
    with tensor_file.safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["superpose"])
    tensors = load_file(path)
    change(header, tensors)
    save_file(tensors, path, {"superpose": json.dumps(header)})


def flip(header, tensors):
    tensors["layers.1.weight"][0, 0] += 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: p.unlink(), "there is no such file"),
        (lambda p: p.write_bytes(p.read_bytes()[:-100]), "is damaged or not a safetensors file"),
        (lambda p: p.write_bytes(p.read_bytes()[:5]), "is damaged or not a safetensors file"),
        (lambda p: p.write_bytes(b""), "is damaged or not a safetensors file"),
        (lambda p: torch.save({"a": 1}, p), "is damaged or not a safetensors file"),
        (lambda p: save_file({"a": torch.ones(2)}, p), "was not written by superpose.save"),
        (lambda p: save_file({"a": torch.ones(2)}, p, {"superpose": "{"}), "header is damaged"),
        (lambda p: edit(p, flip), "was changed after it was saved"),
        (lambda p: edit(p, lambda h, t: h.update(seed=9)), "was changed after it was saved"),
        (lambda p: edit(p, lambda h, t: h.pop("checksum")), "was changed after it was saved"),
        (
            lambda p: edit(p, lambda h, t: h.update(format=99)),
            "has file format 99, and this superpose reads",
        ),
    ],
)
def test_bad_files_say_what_to_do(saved, damage, message):
    damage(saved)
    with pytest.raises(sp.SuperposeError, match=message):
        sp.load(saved, mlp())


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (MLP(12, 16, 5, hidden=3, bias=True), "it has no layers.7.bias"),
        (MLP(12, 16, 5, hidden=1, bias=True), "the network has no layers.5.bias"),
        (MLP(12, 20, 5, bias=True), r"float32 \(16, 12\) in the file and float32 \(20,"),
        (MLP(12, 16, 5, bias=True).double(), "float32 .* in the file and float64"),
        (nn.ReLU(), "ReLU has no layer to superpose"),
        (MLP, r"the class MLP is no network: give an nn\.Module, .* not its class"),
        (mlp().state_dict(), r"OrderedDict.* is no network: give an nn\.Module"),
    ],
)
def test_another_architecture_is_told(saved, net, message):
    with pytest.raises(sp.SuperposeError, match=message):
        sp.load(saved, net)


def test_a_network_of_another_dtype_is_not_another_architecture(saved):
    told = (
        r"another dtype: layers\.1\.weight is float32 .* in the file and bfloat16 .* in the "
        r"network; load it into net\.to\(torch\.float32\), and convert the model"
    )
    with pytest.raises(sp.SuperposeError, match=told):
        sp.load(saved, mlp().bfloat16())
    assert sp.load(saved, mlp().bfloat16().float()).bfloat16().layers[1].weight.dtype.itemsize == 2


def test_contexts_that_come_out_differently_are_noticed(saved, monkeypatch):
    draw = sp.contexts.Binary.draw
    monkeypatch.setattr(sp.contexts.Binary, "draw", lambda self, key, dim: -draw(self, key, dim))
    with pytest.raises(sp.SuperposeError, match="the contexts derived here differ"):
        sp.load(saved, mlp())


def test_a_save_that_fails_leaves_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_file, "save_file", full)
    with pytest.raises(sp.SuperposeError, match="No space left on device; nothing was changed"):
        sp.save(sp.superpose(mlp(), tasks=3), saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    with pytest.raises(sp.SuperposeError, match="is not superposed"):
        sp.save(mlp(), saved)


def test_a_save_that_is_killed_leaves_the_old_file(tmp_path):
    path = tmp_path / "m.safetensors"
    sp.save(sp.superpose(mlp(), tasks=["old"]), path)
    script = (
        "import sys, superpose as sp\n"
        "from superpose_lab.networks import MLP\n"
        "net = MLP(784, 512, 10)\n"
        "model = sp.superpose(net, tasks=20)\n"
        "print('ready', flush=True)\n"
        "while True: sp.save(model, sys.argv[1])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    time.sleep(0.35)
    process.kill()
    process.wait()
    process.stdout.close()
    header, _ = tensor_file.read(path)  # whole, whichever of the two it is
    assert header["tasks"][0][0] in ("old", 0)


def test_two_threads_may_save_to_one_name(tmp_path):
    path = tmp_path / "m.safetensors"
    models = [sp.superpose(mlp(), tasks=n) for n in (2, 3)]

    def save(model):
        for _ in range(10):
            sp.save(model, path)

    threads = [threading.Thread(target=save, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sp.load(path, mlp()).tasks) in (2, 3)


def fine_tuned(**options):
    """A model with a base, of which two of three tasks have learned, and the base itself."""
    net, x = mlp(), torch.randn(5, 12)
    model = sp.superpose(net, "hadamard", tasks=3, base=True, **options)
    model.begin(0, 2)
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    for task in (0, 2):
        optimiser.zero_grad()
        (model(x, task=task) - task).square().mean().backward()
        optimiser.step()
    return model.eval(), net, x


@pytest.mark.parametrize(
    "options",
    [{}, {"rank": 2}, {"centre": "task"}, {"min_inputs": 15}, {"learnable": True}],
    ids=str,
)
def test_a_model_with_a_base_comes_back_the_same(tmp_path, options):
    model, _, x = fine_tuned(**options)
    sp.save(model, tmp_path / "many.safetensors")
    again = sp.load(tmp_path / "many.safetensors", other_weights()).eval()
    for task in range(3):
        assert torch.equal(again(x, task=task), model(x, task=task))
    assert again.cost() == model.cost()
    assert [p.requires_grad for p in again.parameters()] == [
        p.requires_grad for p in model.parameters()
    ]


def other_weights():
    net = mlp()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 1
    return net


def test_a_base_that_people_have_can_be_left_out(tmp_path):
    model, net, x = fine_tuned(rank=1)
    whole, part = tmp_path / "whole.safetensors", tmp_path / "part.safetensors"
    sp.save(model, whole)
    sp.save(model, part, base=False)
    base = sum(tensor.nbytes for tensor in net.state_dict().values())
    assert whole.stat().st_size - part.stat().st_size > 0.9 * base
    again = sp.load(part, net).eval()
    for task in range(3):
        assert torch.equal(again(x, task=task), model(x, task=task))
    with pytest.raises(sp.SuperposeError, match=r"without its base.*another one.*pretrained"):
        sp.load(part, other_weights())
    with pytest.raises(sp.SuperposeError, match="has no base that could be left out"):
        sp.save(sp.superpose(mlp()), part, base=False)


def test_the_base_of_packed_models_can_be_left_out(tmp_path):
    base, x = mlp().eval(), torch.randn(5, 12)
    models = {name: copy.deepcopy(base) for name in "ab"}
    for net in models.values():
        for parameter in net.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    packed = sp.pack(models, method="delta", base=base)
    sp.save(packed, tmp_path / "packed.safetensors", base=False)
    again = sp.load(tmp_path / "packed.safetensors", base)
    for name in models:
        assert torch.equal(again(x, task=name), packed(x, task=name))
    with pytest.raises(sp.SuperposeError, match="without its base"):
        sp.load(tmp_path / "packed.safetensors", models["a"])


@pytest.mark.parametrize(
    ("dtype", "share", "error"),
    [(torch.bfloat16, 0.5, 2e-2), (torch.float16, 0.5, 2e-3), (torch.int8, 0.3, 2e-2)],
    ids=str,
)
def test_numbers_can_be_stored_in_fewer_bits(tmp_path, dtype, share, error):
    torch.manual_seed(0)
    net, x = MLP(64, 96, 5, bias=True), torch.randn(5, 64)
    model = randomise_private(sp.superpose(net, "hadamard", tasks=2, base=True)).eval()
    with torch.no_grad():
        for layer in (1, 3, 5):
            model.layers[layer].weight.normal_(std=0.05)
    whole, small = tmp_path / "whole.safetensors", tmp_path / "small.safetensors"
    sp.save(model, whole)
    sp.save(model, small, dtype=dtype)
    assert small.stat().st_size < (share + 0.06) * whole.stat().st_size
    again = sp.load(small, MLP(64, 96, 5, bias=True)).eval()
    assert again.layers[1].weight.dtype == torch.float32
    if dtype == torch.int8:  # each task's own numbers are not weights with outputs
        assert torch.equal(again.private_parameters(1)[0], model.private_parameters(1)[0])
    for task in range(2):
        expected = model(x, task=task)
        difference = (again(x, task=task) - expected).abs().max() / expected.abs().max()
        assert 0 < difference < error
    with pytest.raises(sp.SuperposeError, match=r"dtype=torch\.int4"):
        sp.save(model, small, dtype=torch.int4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("base", [True, False])
def test_tied_weights_are_stored_in_fewer_bits(tmp_path, base, dtype):
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.hidden = nn.Embedding(11, 8), nn.Linear(8, 8)
            self.head = nn.Linear(8, 11, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x):
            return self.head(self.hidden(self.table(x)))

    torch.manual_seed(0)
    net, x = Text(), torch.randint(11, (4, 5))
    model = randomise_private(sp.superpose(net, tasks=2, base=base)).eval()
    sp.save(model, tmp_path / "small.safetensors", dtype=dtype)
    again = sp.load(tmp_path / "small.safetensors", Text()).eval()
    expected = model(x, task=1)
    assert (again(x, task=1) - expected).abs().max() < 0.03 * expected.abs().max()


def test_numbers_that_have_no_place_in_fewer_bits(tmp_path):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
            self.register_buffer("none", torch.empty(3, 0))

        def forward(self, x):
            return (self.inner(x).unsqueeze(-1) + self.mask).softmax(-1)

    net, x, path = Masked(), torch.randn(2, 4), tmp_path / "small.safetensors"
    model = sp.superpose(net, tasks=2)
    for dtype in (torch.int8, torch.float16):
        sp.save(model, path, dtype=dtype)
        again = sp.load(path, Masked())
        torch.testing.assert_close(again(x, task=1), model(x, task=1), rtol=0.02, atol=0.02)
    with torch.no_grad():
        model.inner.stored("weight")[1, 2] = 1e5
    with pytest.raises(sp.SuperposeError, match=r"inner\.weight has 1e\+05.*torch\.bfloat16"):
        sp.save(model, path, dtype=torch.float16)
    sp.save(model, path, dtype=torch.bfloat16)
