"""The pretrained networks, where their files are: they know what they should."""

import pytest
import torch
import torch.nn.functional as F

from superpose_lab.data import directory
from superpose_lab.data.materials import MATERIALS
from superpose_lab.networks.efficientnet import EfficientNetLite0, efficientnet_lite0
from superpose_lab.networks.minilm import PADDING, TextClassifier, minilm, tokenised

WAVES = [-4.9108, -1.8586, 0.2263, -5.2647]


def need(name: str) -> None:
    root = directory().path
    if not all((root / file.path).is_file() for file in MATERIALS[name].files):
        pytest.skip(f"{name} is not here: superpose_lab.data.materials.material({name!r})")


def test_efficientnet_lite0_has_the_published_number_of_parameters():
    assert sum(p.numel() for p in EfficientNetLite0().parameters()) == 4_652_008


def test_efficientnet_lite0_gives_the_logits_of_the_package_it_comes_from():
    """Of `efficientnet-lite-pytorch` 0.1.0, for the same waves."""
    need("efficientnet-lite0")
    net = efficientnet_lite0().eval()
    with torch.no_grad():
        found = net(torch.linspace(-20, 20, 3 * 64 * 64).sin().view(1, 3, 64, 64))[0]
    torch.testing.assert_close(found[:4], torch.tensor(WAVES), atol=1e-3, rtol=0)


def test_a_text_is_the_same_whatever_fills_it_up():
    class Encoder(torch.nn.Module):
        def forward(self, input_ids, attention_mask):
            x = F.one_hot(input_ids, 9).float() * attention_mask[..., None]
            return type("Found", (), {"last_hidden_state": x + (1 - attention_mask[..., None])})

    net = TextClassifier(Encoder(), 9, 4)
    short = torch.tensor([[3, 5, 8]])
    filled = F.pad(short, (0, 4), value=PADDING)
    torch.testing.assert_close(net(short), net(filled))
    assert not net(short).allclose(net(short.flip(1) - 1))


def test_minilm_finds_what_means_the_same():
    need("all-MiniLM-L6-v2")
    pytest.importorskip("transformers")
    net = minilm(384).eval()
    torch.nn.init.eye_(net.head.weight)
    torch.nn.init.zeros_(net.head.bias)
    texts = ["A cat sat on the mat.", "The kitten was lying on a rug.", "Taxes rise next year."]
    with torch.no_grad():
        one, like, other = F.normalize(net(tokenised(texts, 16)))
    assert one @ like > 0.5 > 0.2 > one @ other
    trained = {name for name, p in net.named_parameters() if not p.requires_grad}
    assert trained
    assert all("embeddings" in name for name in trained)
