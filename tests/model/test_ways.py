"""The ways that are declared: each is compared with the rows alone, on inputs made to break it."""

import inspect

import pytest
import torch
from torch import nn

import superpose as sp
from superpose.model.ways import HEADS, TRANSFORMERS

pytest.importorskip("transformers")
from architectures import LEFT, small, zoo

pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own deprecations are not ours
ROWS = 4  # as many as tokens, heads and patches: a size that happens to be equal is not the rows
MASK = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1]])
BASE = {"family": "hadamard", "base": True, "rank": 2, "centre": "task"}


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def inputs(net):
    """What the network takes; texts of different lengths, padded on the side that it wants."""
    mask = MASK if type(net).__name__.startswith(LEFT) else MASK.flip(1)
    ids = torch.randint(3, 60, (ROWS, 4), generator=torch.Generator().manual_seed(0)) * mask
    sound = torch.arange(400) < torch.tensor([[400], [200], [300], [100]])
    every = {
        "pixel_values": numbers(ROWS, 3, 16, 16),
        "input_values": numbers(ROWS, 400),
        "input_features": numbers(ROWS, 8, 32),
        "input_ids": ids,
        "attention_mask": sound.long() if net.main_input_name == "input_values" else mask,
        "token_type_ids": torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 1, 1], [0, 0, 0, 0]]),
        "decoder_input_ids": ids.flip(0) + 1,
    }
    taken = inspect.signature(net.forward).parameters
    if net.main_input_name == "pixel_values":
        return {"pixel_values": every["pixel_values"]}
    if net.main_input_name == "input_features":
        taken = {"input_features", "decoder_input_ids"} & set(taken)
    return {name: tensor for name, tensor in every.items() if name in taken}


def tables(net):
    """Tables, and tensors that stand beside layers."""
    own = (nn.Linear, nn.LayerNorm, nn.modules.conv._ConvNd, nn.GroupNorm, nn.BatchNorm2d)
    found = [name for name, module in net.named_modules() if isinstance(module, nn.Embedding)]
    for path, module in net.named_modules():
        known = isinstance(module, (*own, nn.MultiheadAttention, nn.Embedding))
        if not (known or path.endswith("norm") or "parametrizations" in path):
            found += [f"{path}.{n}" if path else n for n in module._parameters]
    return found


def check(net, given, training=False, **options):
    model = sp.superpose(net, tasks=ROWS, **options)
    model.begin(*model.tasks)
    found = sp.check_mixed(model.train(training), **given, rounds=1)
    assert found.right == ["grouped", "direct"], str(found)
    assert not found.notes
    return model


@pytest.mark.parametrize("name", sorted(TRANSFORMERS))
def test_architectures_that_are_direct_give_each_row_what_it_has_alone(name):
    net = small(name)
    given = inputs(net)
    assert check(net, given, private_layers=shareable(name, net)).mixed == "direct"
    check(net, given, training=True, **(BASE if "Falcon" not in name else {}))


def shareable(name, net):
    return [] if name.startswith(("Bart", "MPNet", "T5", "Whisper")) else tables(net)


VARIANTS = {
    "AlbertModel": {"num_hidden_groups": 2},
    "BertModel": {"is_decoder": True},
    "FalconForCausalLM": {"alibi": True, "new_decoder_architecture": True},
    "GPT2LMHeadModel": {"scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False},
    "LlamaForCausalLM": {"attention_bias": True, "mlp_bias": True},
    "MistralForCausalLM": {"sliding_window": 2},
    "ModernBertModel": {"global_attn_every_n_layers": 2, "local_attention": 2},
    "Dinov2Model": {"use_swiglu_ffn": True},
    "ResNetModel": {"layer_type": "bottleneck", "downsample_in_first_stage": True},
    "T5ForConditionalGeneration": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "Wav2Vec2Model": {"feat_extract_norm": "layer", "do_stable_layer_norm": True},
    "Wav2Vec2ForSequenceClassification": {"use_weighted_layer_sum": True},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_so_they_do_with_other_settings(name):
    net = small(name, **VARIANTS[name])
    check(net, inputs(net))


@pytest.mark.parametrize("heads", HEADS.items(), ids=lambda heads: heads[0].split()[0])
def test_a_loss_over_rows_of_many_tasks_is_refused(heads):
    families, names = heads
    for head in names.split():
        net = small(families.split()[0] + head)
        if head != "ForCausalLM" and not head.endswith("LMHeadModel"):
            continue
        model, given = sp.superpose(net, tasks=ROWS).eval(), inputs(net)
        labels = torch.full((ROWS, 4), -100)
        for way in ("grouped", "direct"):
            model.mixed = way
            with pytest.raises(sp.SuperposeError, match="such as a loss"):
                model(**given, labels=labels, task=list(range(ROWS)))


NOT_DIRECT = {
    "OPTForCausalLM": zoo.MODELS["OPT"][1],
    "MixtralForCausalLM": zoo.MODELS["Mixtral"][1],
    "SwinModel": zoo.MODELS["Swin"][1] | {"drop_path_rate": 0.0},
    "DebertaV2Model": zoo.MODELS["DeBERTa-v3"][1],
    "MambaModel": zoo.MODELS["Mamba"][1],
    "WavLMModel": zoo.MODELS["WavLM"][1],
    "ModernBertForMaskedLM": zoo.ENCODER | {"sparse_prediction": True, "cls_token_id": 1}
    | {"sep_token_id": 2},
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_DIRECT)
def test_others_are_grouped(name):
    net = zoo.network(name, NOT_DIRECT[name])
    given = inputs(net)
    if name == "SwinModel":
        given = {"pixel_values": numbers(ROWS, 3, 32, 32)}
    model = sp.superpose(net, tasks=ROWS).eval()
    assert model.mixed == "grouped"
    assert "grouped" in sp.check_mixed(model, **given, rounds=1).right


@pytest.mark.parametrize("name", ["T5EncoderModel", "MPNetModel", "BartModel", "WhisperModel"])
def test_tables_that_are_looked_up_at_positions_are_not_private_in_direct_batches(name):
    net = small(name)
    private = [n for n, module in net.named_modules() if isinstance(module, nn.Embedding)]
    model = sp.superpose(net, tasks=ROWS, private_layers=private).eval()
    assert model.mixed == "grouped"
    assert "grouped" in sp.check_mixed(model, **inputs(net), rounds=1).right


class Backwards(nn.Linear):
    def forward(self, x):
        return super().forward(x.flip(0))


def changed(net, how):
    if how == "another's module":
        net.pooler.dense = Backwards(32, 32)
    elif how == "a hook":
        net.pooler.register_forward_hook(lambda module, inputs, y: y.flip(0))
    else:
        net.pooler.forward = type(net.pooler).forward.__get__(net.pooler)
    return net


@pytest.mark.parametrize("how", ["another's module", "a hook", "a forward"])
def test_a_network_that_was_changed_is_not_the_one_that_is_declared(how):
    assert sp.superpose(small("BertModel")).mixed == "direct"
    assert sp.superpose(changed(small("BertModel"), how)).mixed == "grouped"
    assert sp.superpose(small("BertModel"), batch_dim={"input_ids": 0}).mixed == "grouped"


def test_a_model_of_transformers_may_have_a_tensor_of_its_own_for_each_task():
    net = zoo.network(
        "CLIPModel",
        {"text_config": zoo.ENCODER, "vision_config": zoo.VISION, "projection_dim": 16},
    )
    assert sp.superpose(net, private_layers=["logit_scale"]).mixed == "grouped"


PADDING = torch.tensor([[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 1, 1, 1]]).bool()
CAUSAL = nn.Transformer.generate_square_subsequent_mask(4)
FOLDED = numbers(2 * ROWS, 4, 4)
SIZES = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0.0}
X, MEMORY = numbers(ROWS, 4, 8), numbers(ROWS, 4, 8).flip(0)


def encoder(batch_first, nested=False):
    layer = nn.TransformerEncoderLayer(**SIZES, batch_first=batch_first, norm_first=not batch_first)
    norm = nn.LayerNorm(8)
    return nn.TransformerEncoder(layer, 2, norm=norm, enable_nested_tensor=nested)


ATTENDING = {
    "attention": (
        lambda first: nn.MultiheadAttention(8, 2, batch_first=first, add_bias_kv=True),
        (X, MEMORY, MEMORY.sin()),
        [
            {"key_padding_mask": PADDING},
            {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False},
            {"attn_mask": FOLDED, "average_attn_weights": False},
        ],
    ),
    "encoder layer": (
        lambda first: nn.TransformerEncoderLayer(**SIZES, batch_first=first, activation="gelu"),
        (X,),
        [{"src_key_padding_mask": PADDING}, {"src_mask": (FOLDED > 0.5) & ~torch.eye(4).bool()}],
    ),
    "decoder layer": (
        lambda first: nn.TransformerDecoderLayer(**SIZES, batch_first=first),
        (X, MEMORY),
        [{"tgt_mask": CAUSAL, "tgt_is_causal": True, "memory_key_padding_mask": PADDING}],
    ),
    "encoder": (encoder, (X,), [{"src_key_padding_mask": PADDING}, {"mask": CAUSAL}]),
    "decoder": (
        lambda first: nn.TransformerDecoder(
            nn.TransformerDecoderLayer(**SIZES, batch_first=first), 2
        ),
        (X, MEMORY),
        [{"tgt_mask": CAUSAL, "memory_key_padding_mask": PADDING}],
    ),
    "transformer": (
        lambda first: nn.Transformer(
            **SIZES, num_decoder_layers=1, batch_first=first, custom_encoder=encoder(first)
        ),
        (X, MEMORY),
        [{"tgt_mask": CAUSAL, "src_key_padding_mask": PADDING}],
    ),
}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("name", ATTENDING)
def test_pytorchs_attention_is_direct(name, batch_first):
    torch.manual_seed(0)
    make, given, every = ATTENDING[name]
    net = make(batch_first)
    private = [] if name == "attention" else ["*norm1*", "*linear2*", "*out_proj*"]
    options = {"base": True, "rank": 2} | ({} if name == "attention" else {"centre": "task"})
    for own in (options, {"private_layers": private}, {"private": "shared"}, {"private": "none"}):
        model = sp.superpose(net, "hadamard", tasks=ROWS, **own)
        model.begin(*model.tasks)
        assert model.mixed == "direct"
        for training in (True, False):
            for masks in [{}, *every]:
                found = sp.check_mixed(model.train(training), *given, **masks, rounds=1)
                assert found.right == ["grouped", "direct"], str(found)


def test_an_encoder_whose_fused_pass_writes_zeros_to_padding_is_grouped():
    torch.manual_seed(0)
    model = sp.superpose(encoder(batch_first=True, nested=True), tasks=ROWS).eval()
    assert model.mixed == "grouped"
    assert sp.check_mixed(model, X, src_key_padding_mask=PADDING).right == ["grouped"]
    assert sp.check_mixed(model, X).right == ["grouped", "direct"]


def test_parts_of_ones_own_in_pytorchs_attention_are_grouped():
    layer = nn.TransformerEncoderLayer(**SIZES, activation=lambda x: x.flip(0).relu())
    assert sp.superpose(layer).mixed == "grouped"
    norm = nn.Sequential(nn.Flatten(0), nn.Linear(128, 128))
    stack = nn.TransformerDecoder(nn.TransformerDecoderLayer(**SIZES), 1, norm=norm)
    assert sp.superpose(stack).mixed == "grouped"


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers_run_their_tasks_in_turn_in_both_ways(kind, batch_first):
    torch.manual_seed(0)
    net = kind(8, 6, 2, batch_first=batch_first, bidirectional=True)
    model = sp.superpose(net, tasks=ROWS, base=True, rank=2)
    model.begin(*model.tasks)
    state = numbers(4, ROWS, 6)
    for given in ((X,), (X, (state, state.sin()) if kind is nn.LSTM else state)):
        assert sp.check_mixed(model, *given).right == ["grouped", "direct"]


def test_skipped_and_shared_layers_keep_rows_apart():
    net = nn.Sequential(nn.Conv1d(4, 4, 1), nn.GroupNorm(2, 4), nn.Linear(8, 8), nn.LayerNorm(8))
    for options in ({"private": "shared"}, {"skip": ["0", "3"]}):
        model = sp.superpose(net, tasks=ROWS, **options)
        assert model.mixed == "direct"
        assert sp.check_mixed(model, X).right == ["grouped", "direct"]
    norm = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(4))
    assert sp.superpose(norm, private="shared").mixed == "grouped"


class Random(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return nn.functional.dropout(self.layer(x), 0.5, self.training)


def test_a_network_that_draws_random_numbers_is_not_compared_in_training():
    model = sp.superpose(Random(), tasks=ROWS)
    found = sp.check_mixed(model, X)
    assert found.right == ["grouped"]
    assert "draws random numbers" in found.why["direct"]
    assert sp.check_mixed(model.eval(), X).right == ["grouped", "direct"]


def test_tasks_for_another_number_of_rows_are_told_so_in_both_ways():
    model = sp.superpose(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), tasks=3)
    for way in ("direct", "grouped"):
        model.mixed = way
        with pytest.raises(sp.SuperposeError, match=r"there are 3 tasks.*\(4, 4, 8\)"):
            model(X, task=[0, 1, 2])


class Folds(nn.Module):
    """Gives (rows · heads, …), as attention with a bias of positions does, and such a bias."""

    def __init__(self, table):
        super().__init__()
        self.linear, self.gain = nn.Linear(8, 8), nn.Parameter(torch.ones(8))
        self.table = nn.Embedding(4, 8) if table else None

    def forward(self, x):
        y = self.linear(x) * self.gain
        y = y if self.table is None else y + self.table(x.abs().sum(-1).long() % 4)
        return y.repeat_interleave(4, 0)


class Reads(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.folds = Folds(table)

    def forward(self, x):
        return self.folds(x).unflatten(0, (-1, 4)).sum(1)


@pytest.mark.parametrize("table", [False, True])
def test_a_module_with_tensors_of_tasks_that_folds_its_rows_is_an_error_in_direct_batches(table):
    private = ["folds.gain", *(["folds.table"] if table else [])]
    model = sp.superpose(Reads(table), tasks=ROWS, private_layers=private, mixed="direct").eval()
    with pytest.raises(sp.SuperposeError, match=r"'folds' returns .*not found in it.*grouped"):
        model(X, task=[0, 1, 2, 3])
    assert sp.check_mixed(model, X).right == ["grouped"]
