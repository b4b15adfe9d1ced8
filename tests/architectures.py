"""Small networks of classes of `transformers`, by name: of one layer each, without randomness."""

from scripts import loaded

zoo = loaded("zoo")

ENCODER = zoo.ENCODER | {"num_hidden_layers": 1}
GROUPED = zoo.GROUPED | {"num_hidden_layers": 1}
VISION = zoo.VISION | {"num_hidden_layers": 1, "image_size": 16}
GPT = zoo.TEXT | {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64}
PAIR = zoo.DEEP | zoo.HEADS | zoo.WIDE | {"encoder_layers": 1, "decoder_layers": 1}
WAVES = zoo.WAVES | {"num_hidden_layers": 1, "vocab_size": 30}
IMAGES = {"hidden_sizes": [8, 16], "depths": [1, 1]}

FAMILIES = {
    "Albert": ENCODER | {"embedding_size": 16},
    "Bart": PAIR,
    "Beit": VISION,
    "Bert": ENCODER,
    "Bloom": zoo.TEXT | {"hidden_size": 32, "n_layer": 1, "n_head": 4},
    "Camembert": ENCODER,
    "CLIP": {"text_config": ENCODER, "vision_config": VISION},
    "CLIPText": ENCODER,
    "CLIPVision": VISION,
    "ConvNext": IMAGES | {"num_stages": 2},
    "ConvNextV2": IMAGES | {"num_stages": 2},
    "DeiT": VISION,
    "Dinov2": VISION,
    "DistilBert": {"dim": 32, "n_layers": 1, "n_heads": 4, "hidden_dim": 64, "vocab_size": 60},
    "Electra": ENCODER | {"embedding_size": 16},
    "Falcon": ENCODER,
    "GPT2": GPT,
    "GPTBigCode": GPT,
    "GPTJ": GPT | {"rotary_dim": 4},
    "GPTNeo": zoo.TEXT
    | {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 3}
    | {"attention_types": [[["global", "local"], 1]]},
    "GPTNeoX": ENCODER,
    "Gemma": GROUPED,
    "Gemma2": GROUPED,
    "Hubert": WAVES,
    "Llama": GROUPED,
    "M2M100": PAIR,
    "MPNet": ENCODER,
    "Mistral": GROUPED,
    "ModernBert": ENCODER | {"cls_token_id": 1, "sep_token_id": 2},
    "Phi": ENCODER,
    "Phi3": ENCODER,
    "Qwen2": GROUPED,
    "Qwen3": GROUPED,
    "ResNet": IMAGES | {"embedding_size": 8, "layer_type": "basic"},
    "Roberta": ENCODER,
    "Siglip": {"text_config": ENCODER, "vision_config": VISION},
    "SiglipText": ENCODER,
    "SiglipVision": VISION,
    "T5": zoo.TEXT | {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 1, "num_heads": 4},
    "ViT": VISION,
    "Wav2Vec2": WAVES,
    "Whisper": zoo.MODELS["Whisper"][1] | {"encoder_layers": 1, "decoder_layers": 1},
    "XLMRoberta": ENCODER,
}
LEFT = ("Bloom", "Falcon", "GPT", "Gemma", "Llama", "Mistral", "Phi", "Qwen")
"""Those whose texts are padded on the left."""

RANDOM = (
    "activation_dropout", "attention_dropout", "attention_probs_dropout_prob",
    "attn_pdrop", "dropout", "dropout_rate", "drop_path_rate", "embd_pdrop", "feat_proj_dropout",
    "final_dropout", "hidden_dropout", "hidden_dropout_prob", "layerdrop", "mask_time_prob",
    "encoder_layerdrop", "decoder_layerdrop", "resid_pdrop",
)  # fmt: skip


def family(name):
    """The longest of the names that it begins with."""
    return max((one for one in FAMILIES if name.startswith(one)), key=len)


def small(name, **more):
    """A network from a config, its tensors of zeros made random."""
    still = dict.fromkeys(RANDOM, 0.0) | {"apply_spec_augment": False}
    return zoo.network(name, FAMILIES[family(name)] | more, still)
