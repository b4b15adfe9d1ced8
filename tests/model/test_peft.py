"""PEFT's own LoRA layers: the adapters are superposed, the frozen layers under them stay."""

import pytest
import torch

import superpose as sp

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own deprecations are not ours

ROWS = [0, 1, 0, 2]


def bert():
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config), ["query", "value"]


def gpt2():
    config = transformers.GPT2Config(vocab_size=30, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    return transformers.GPT2LMHeadModel(config), ["c_attn", "c_fc"]


def adapted(make):
    """A network with adapters that give something: PEFT's own start at zero."""
    torch.manual_seed(0)
    net, targets = make()
    found = peft.get_peft_model(
        net, peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, lora_dropout=0.0)
    ).eval()
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
    return found, torch.randint(0, 30, (4, 5))


@pytest.mark.parametrize("options", [{"base": True}, {}], ids=["base", "scrambled"])
@pytest.mark.parametrize("make", [bert, gpt2])
def test_adapters_are_superposed_and_frozen_layers_are_not(make, options):
    net, x = adapted(make)
    model = sp.superpose(net, "hadamard", tasks=3, **options)
    adapters = [name for name, p in net.named_parameters() if p.requires_grad]
    assert sorted(model.summary().superposed) == sorted(adapters)
    assert {name.split(".")[-3] for name in adapters} == {"lora_A", "lora_B"}
    frozen = {name: p for name, p in net.named_parameters() if "base_layer.weight" in name}
    assert len(frozen) == len(adapters) // 2
    expected = net(x).logits.detach()
    assert torch.equal(model(x, task=1).logits, expected) == ("base" in options)
    model.begin(0)
    learned = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(learned, 1e-2)
    losses = []
    for _ in range(8):
        optimiser.zero_grad()
        loss = (model(x, task=0).logits - 1).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    after = dict(model.named_parameters())
    assert all(torch.equal(after[name], weight) for name, weight in frozen.items())
    model.eval()
    with torch.no_grad():
        if "base" in options:
            assert torch.equal(model(x, task=1).logits, net(x).logits)
        each = [model(x[i : i + 1], task=task).logits for i, task in enumerate(ROWS)]
        mixed = model(x, task=ROWS).logits
        torch.testing.assert_close(mixed, torch.cat(each))
        assert (mixed - model(x, task=ROWS[::-1]).logits).abs().max() > 1e-3
        torch.testing.assert_close(sp.unsuperpose(model, 0)(x).logits, model(x, task=0).logits)


def test_a_classifier_beside_adapters_needs_a_base_and_is_found_by_a_pattern():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=64, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    net = peft.get_peft_model(
        transformers.BertForSequenceClassification(config),
        peft.LoraConfig(r=8, target_modules=["query"], task_type="SEQ_CLS"),
    ).eval()
    x = torch.randint(0, 30, (4, 5))
    scrambled = sp.superpose(net, "hadamard", tasks=2).eval()
    assert not torch.allclose(scrambled(x, task=1).logits, net(x).logits, atol=1e-3)
    with pytest.raises(sp.SuperposeError, match=r"nearest is 'base_model\.model\.classifier'"):
        sp.superpose(net, "hadamard", tasks=2, base=True, private_layers=["classifier"])
    options = {"base": True, "private_layers": ["*classifier*"], "min_inputs": 33}
    model = sp.superpose(net, "hadamard", tasks=2, **options).eval()
    assert torch.equal(model(x, task=1).logits, net(x).logits)
    assert [name.split(".")[-3] for name in model.summary().superposed] == ["lora_A"]
    private = " ".join(model.summary().private)
    assert "lora_B.default.weight" in private
    assert "classifier.modules_to_save.default.weight" in private
