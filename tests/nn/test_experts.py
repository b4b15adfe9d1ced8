"""Experts of `transformers`: what is declared of them by name is what they compute."""

import pytest
import torch
from checks import randomise_private
from torch import nn

import superpose as sp

transformers = pytest.importorskip("transformers")

IDS = torch.arange(3, 24).view(3, 7)
HIDDEN, INNER = 24, 20  # so that no size is taken for another: gate and up are 40 together
SIZE = {
    "hidden_size": HIDDEN, "intermediate_size": INNER, "moe_intermediate_size": INNER,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "vocab_size": 60, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
GROUPS = {"head_dim": 4, "n_group": 1, "topk_group": 1, "v_head_dim": 8, "first_k_dense_replace": 0}
MODELS = {
    "MixtralForCausalLM": {"num_local_experts": 3},
    "GptOssForCausalLM": {"num_local_experts": 3, "num_experts_per_tok": 2},
    "OlmoeForCausalLM": {"head_dim": 6, "num_experts": 3, "num_experts_per_tok": 2},
    "Qwen3MoeForCausalLM": {"num_experts": 3, "num_experts_per_tok": 2},
    "DeepseekV3ForCausalLM": {"n_routed_experts": 4, "num_experts_per_tok": 2} | LATENT | GROUPS,
    "Llama4ForCausalLM": {"num_local_experts": 3, "interleave_moe_layer_step": 1},
    "DbrxForCausalLM": {
        "d_model": HIDDEN, "n_heads": 4, "n_layers": 2, "max_seq_len": 32,
        "ffn_config": {"ffn_hidden_size": INNER, "moe_num_experts": 3, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
    },
}  # fmt: skip
WIDTHS = {HIDDEN, INNER, 3 * INNER}  # DBRX keeps the experts' inputs side by side
every_model = pytest.mark.parametrize("kind", MODELS)


def network(kind, **options):
    made = getattr(transformers, kind)
    config = made.config_class
    known = SIZE if kind != "DbrxForCausalLM" else {k: SIZE[k] for k in SIZE if k == "vocab_size"}
    if kind == "Llama4ForCausalLM":
        config = transformers.Llama4TextConfig
        known = SIZE | {"intermediate_size_mlp": INNER}
    torch.manual_seed(0)
    net = made(config(**known | MODELS[kind] | options)).eval()
    for parameter in net.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.1)
    return net


def expert_layers(model):
    layers = [layer for layer in model.superposed_layers if layer.bound]
    return [layer for layer in layers if "Expert" in layer.plain_class.__name__]


@every_model
def test_a_task_computes_what_is_read_out(kind):
    net = network(kind)
    model = randomise_private(sp.superpose(net, "rotation", tasks=3)).eval()
    y = model(IDS, task=1).logits
    torch.testing.assert_close(sp.unsuperpose(model, 1)(IDS).logits, y, rtol=1e-3, atol=1e-4)
    assert (y - model(IDS, task=2).logits).abs().max() > 1e-2


@every_model
def test_the_inputs_of_experts_and_routers_are_bound(kind):
    model = sp.superpose(network(kind), tasks=2)
    experts = expert_layers(model)
    assert len(experts) == 2
    for layer in experts:
        sizes = {bound.context.dim for bound in layer.bound.values()}
        assert sizes <= WIDTHS
        assert len(sizes) == 2
    shared, own = model.summary().shared, dict(model.named_parameters())
    tables = [n for n in shared if n in own and own[n].ndim > 1]
    assert all("embed" in name or "wte" in name for name in tables)


@pytest.mark.parametrize("kind", ["MixtralForCausalLM", "GptOssForCausalLM"])
def test_a_step_on_one_task_moves_the_experts_of_another_little(kind):
    """ΔW C(1) x beside ΔW C(0) x, for inputs x of the experts: signs keep them apart."""
    wide = {"hidden_size": 512, "intermediate_size": 320, "num_hidden_layers": 1}
    model = sp.superpose(network(kind, **wide), "binary", tasks=2)
    (layer,) = expert_layers(model)
    torch.manual_seed(0)
    model(IDS, task=0).logits.square().mean().backward()
    for name, (bound, at) in layer.bound.items():
        step = at.to_matrix(getattr(layer, name).grad)  # (experts, outputs, inputs)
        read = [bound.derive(task).to(step.device, step.dtype).bind_weight(step) for task in (0, 1)]
        x = read[0].flatten(0, 1)
        x = x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12)  # what the step was made of
        moved = [(one.flatten(0, 1) * x).sum(-1).norm() for one in read]
        assert moved[1] < 0.35 * moved[0], name
