"""Mixed batches that could go wrong without an error: each is right, or refused with a sentence."""

import pytest
import torch
import torch.nn.functional as F
from checks import rows_one_by_one
from networks import encoder, mlp
from silent import TASKS, Two, model_of
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import superpose as sp


class BySorting(Two):
    def forward(self, x, lengths):
        order = lengths.argsort(descending=True, stable=True)
        return self.second(self.first(x[order]) * lengths[order].view(-1, 1))[order.argsort()]


class ByExperts(Two):
    def forward(self, x, lengths):
        y = torch.zeros_like(x)
        for expert, layer in enumerate((self.first, self.second)):
            rows = (lengths % 2 == expert).nonzero()[:, 0]
            y = y.index_add(0, rows, layer(x[rows]))
        return y


class ByMask(Two):
    def forward(self, x, lengths):
        mask = lengths > 2
        return x.masked_scatter(mask[:, None], self.second(self.first(x[mask])))


@pytest.mark.parametrize("kind", [BySorting, ByExperts, ByMask])
def test_rows_that_are_ordered_or_picked_by_their_values(kind):
    model, x = model_of(kind()), torch.randn(4, 8)
    for lengths in ([4, 4, 4, 4], [4, 3, 2, 1], [1, 2, 3, 4], [2, 4, 1, 3]):
        lengths = torch.tensor(lengths)
        each = [model(x[i : i + 1], lengths[i : i + 1], task=t) for i, t in enumerate(TASKS)]
        torch.testing.assert_close(model(x, lengths, task=TASKS), torch.cat(each))


class WithLoss(Two):
    def forward(self, x, labels):
        y = super().forward(x)
        return {"logits": y, "loss": F.cross_entropy(y, labels, ignore_index=-100)}


def test_a_loss_that_the_network_computes_over_tasks_is_refused():
    """Whatever the first batch's was; nobody averages it."""
    model, x = model_of(WithLoss()), torch.randn(4, 8)
    for labels in (torch.full((4,), -100), torch.tensor([1, 1, 1, 1]), torch.arange(4)):
        with pytest.raises(
            sp.SuperposeError, match=r"a single number.*such as a loss.*'return': \["
        ):
            model(x, labels, task=TASKS)
        assert model(x, labels, task=1)["loss"].ndim == 0
    declared = model_of(WithLoss(), batch_dim={"return": [0, None]})
    found = declared(x, torch.arange(4), task=TASKS)
    assert found["logits"].shape == (4, 8)
    with pytest.raises(sp.SuperposeError, match="returns 2 tensors: give"):
        model_of(WithLoss(), batch_dim={"return": [0]})(x, torch.arange(4), task=TASKS)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("grad", [True, False])
def test_padding_of_an_encoder_is_what_the_plain_one_makes_of_it(grad):
    """Without gradients PyTorch's fast path zeroes padding, which a mean over tokens sees."""

    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = encoder(batch_first=True), nn.Linear(8, 2)

        def forward(self, x, padding):
            return self.head(self.encoder(x, src_key_padding_mask=padding).mean(1))

    torch.manual_seed(0)
    net, x = Text().eval(), torch.randn(4, 5, 8)
    padding = torch.zeros(4, 5, dtype=torch.bool)
    padding[1:, 3:] = True
    model = sp.superpose(net, "identity", tasks=2).eval()
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(model(x, padding, task=1), net(x, padding))


def test_a_pass_compares_no_numbers(monkeypatch):
    model, x = model_of(mlp()), torch.randn(4, 12)

    def refuse(*_, **__):
        raise AssertionError("numbers were compared")

    with torch.no_grad():
        for name in ("equal", "allclose", "isclose"):
            monkeypatch.setattr(torch, name, refuse)
        for _ in range(2):
            model(x, task=1), model(x, task=TASKS)


class Again(Two):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=True)


def test_reentrant_checkpointing_of_a_mixed_batch_is_refused():
    model, x = model_of(Again()), torch.randn(4, 8, requires_grad=True)
    y = model(x, task=TASKS)
    with pytest.raises(sp.SuperposeError, match="use_reentrant=False and context_fn=superpose"):
        y.sum().backward()


class Packed(nn.Module):
    def __init__(self, total=None):
        super().__init__()
        self.rnn, self.total = nn.GRU(8, 4, batch_first=True), total

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.rnn(packed)[0], True, total_length=self.total)[0]


def test_rows_that_are_padded_to_the_longest_of_a_task():
    x, lengths = torch.randn(4, 5, 8), torch.tensor([5, 2, 3, 3])
    with pytest.raises(sp.SuperposeError, match=r"come out in different shapes.*total_length"):
        model_of(Packed())(x, lengths, task=TASKS)
    model = model_of(Packed(5))
    each = [model(x[i : i + 1], lengths[i : i + 1], task=t) for i, t in enumerate(TASKS)]
    torch.testing.assert_close(model(x, lengths, task=TASKS), torch.cat(each))


READS = {
    "linear": lambda x, w: F.linear(x, w),
    "mm": lambda x, w: x.mm(w),
    "addmm": lambda x, w: torch.addmm(x, x, w),
    "baddbmm": lambda x, w: torch.baddbmm(x[None], x[None], w[None]),
    "conv": lambda x, w: F.conv1d(x[..., None], w[..., None]),
    "bilinear": lambda x, w: F.bilinear(x, x, w[None].expand(2, 8, 8)),
    "einsum": lambda x, w: torch.einsum("bi,oi->bo", x, w),
    "a choice": lambda x, w: x * (F.linear(x, w)[:, :1] > 0),
    "a copy": lambda x, w: x + torch.zeros(8, 8).copy_(w)[0],
    "numbers": lambda x, w: x * w.detach().sum().item(),
    "numpy": lambda x, w: x + torch.from_numpy(w.detach().numpy())[0],
    "an index": lambda x, w: x + w[0],
    "a list": lambda x, w: x + w.tolist()[0][0],
}


@pytest.mark.parametrize("how", READS)
def test_a_tensor_that_is_read_in_a_direct_batch_is_refused(how):
    """Its numbers would be those of no task, or of memory that nobody has written to."""

    class Net(Two):
        def forward(self, x):
            x = x.to(self.second.weight.dtype).view(-1, self.second.weight.shape[1])
            return READS[how](self.first(x), self.second.weight)

    model, x = model_of(Net(), mixed="direct"), torch.randn(4, 8)
    model(x, task=1)
    with pytest.raises(sp.SuperposeError, match=r"second.weight is read without.*'grouped'"):
        model(x, task=TASKS)


class Caching(Two):
    """Keeps something that it computed from a private tensor, as LeViT does."""

    def __init__(self):
        super().__init__()
        self.biases, self.kept = nn.Parameter(torch.randn(4, 8)), {}

    def forward(self, x):
        if self.training:
            return self.first(x) + self.biases.sum(0)
        if "b" not in self.kept:
            self.kept["b"] = self.biases.sum(0)
        return self.first(x) + self.kept["b"]


def test_a_network_that_keeps_one_tasks_numbers_is_told_by_the_check():
    model, x = model_of(Caching(), private_layers=["biases"]), torch.randn(4, 8)
    assert "depend on which tasks ran before" in str(sp.check_mixed(model, x, rounds=1))
    assert not model.kept
    clean = model_of(Two())
    assert "ran before" not in str(sp.check_mixed(clean, x, rounds=1))


def test_rows_are_computed_as_they_were_said_to_be():
    """Of modules whose direct batches are declared, none is run twice, or grouped unasked."""
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    model, runs = model_of(net), []
    model[1].forward = lambda x: runs.append(len(x)) or x.relu()
    model.__dict__.pop("_way", None)
    x = torch.randn(4, 8)
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))
    assert model.mixed == "grouped"  # a forward was set on one of them
    model.mixed, runs[:] = "direct", []
    model(x, task=TASKS)
    assert runs == [4]


def test_a_layer_that_reads_another_ones_weight():
    """Its rows may run by themselves, with what is inside it alone."""

    class Reads(nn.Module):
        def __init__(self, other):
            super().__init__()
            self.scale, self.others = nn.Parameter(torch.ones(8)), [other]

        def forward(self, x):
            return F.linear(x, self.others[0].weight) * self.scale

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(8, 8)
            self.second = Reads(self.first)

        def forward(self, x):
            return self.second(self.first(x))

    model, x = model_of(Net(), private_layers=["second"]), torch.randn(4, 8)
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))
    torch.testing.assert_close(model(x, task=1), sp.unsuperpose(model, 1)(x))
    model.mixed = "direct"
    with pytest.raises(sp.SuperposeError, match="'first' is read by another layer"):
        model(x, task=TASKS)
