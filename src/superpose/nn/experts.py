"""Experts of mixtures, their routers and a few tables in `transformers`, known by their names.

The package need not be installed. Orientations are those of its version 5; a class whose tensors
are others in another version is left alone, with the warning of any undeclared module.
"""

GATE_UP_DOWN = (
    "AfmoeExperts", "AXK1Experts", "AXK2Experts", "BailingHybridExperts", "BeamExperts",
    "Cohere2MoeExperts", "DeepseekOcr2TextExperts", "DeepseekV2Experts", "DeepseekV32Experts",
    "DeepseekV3Experts", "DeepseekV4Experts", "DiffusionGemmaTextExperts", "Dots1Experts",
    "Ernie4_5_MoeExperts", "Ernie4_5_VLMoeMoeExperts", "ExaoneMoeExperts", "FlexOlmoExperts",
    "FlintExperts", "Gemma4TextExperts", "Glm4MoeExperts", "Glm4MoeLiteExperts",
    "Glm4vMoeTextExperts", "Glm5NextTextExperts", "GlmMoeDsaExperts", "GraniteMoeExperts",
    "GraniteMoeHybridExperts", "GraniteMoeSharedExperts", "GraniteMoeSWAExperts",
    "HunYuanMoEV1Experts", "HYV3Experts", "HYV4Experts", "InklingExperts", "JambaExperts",
    "KimiLinearExperts", "Kolibri1Experts", "LagunaExperts", "Lfm2MoeExperts",
    "LongcatFlashExperts", "MellumExperts", "MiMoV2FlashExperts", "MiniMaxExperts",
    "MiniMaxM2Experts", "MiniMaxM3VLExperts", "Mistral4Experts", "MistralLarge4TextExperts",
    "MixtralExperts", "MuseSparkExperts", "OlmoeExperts", "PhimoeExperts", "Qwen2MoeExperts",
    "Qwen3_5MoeExperts", "Qwen3MoeExperts", "Qwen3NextExperts",
    "Qwen3OmniMoeTalkerTextExperts", "Qwen3OmniMoeThinkerTextExperts", "Qwen3VLMoeTextExperts",
    "Qwen4ExpTextExperts", "SolarOpenExperts", "Step3p7Experts", "UnlimitedOcrTextExperts",
    "ZayaExperts",
)  # fmt: skip
"""`F.linear(x, self.gate_up_proj[expert])`, and so down."""

TRANSPOSED = (
    "AriaExperts", "GptOssExperts", "Llama4TextExperts", "OpenAIPrivacyFilterExperts",
)  # fmt: skip
"""`x @ self.gate_up_proj[expert]`, and so down."""

ROUTERS = (
    "AriaTextTopKRouter", "AXK1TopkRouter", "AXK2TopkRouter", "BailingHybridTopkRouter",
    "BeamTopKRouter", "Cohere2MoeTopKRouter", "DeepseekOcr2TextTopkRouter",
    "DeepseekV2TopkRouter", "DeepseekV32TopkRouter", "DeepseekV3TopkRouter",
    "DeepseekV4HashRouter", "DeepseekV4TopKRouter", "Dots1TopkRouter",
    "Ernie4_5_MoeTopKRouter", "Ernie4_5_VLMoeMoeTopKRouter", "ExaoneMoeTopkRouter",
    "FlexOlmoTopKRouter", "FlintTopKRouter", "Glm4MoeLiteTopkRouter", "Glm4MoeTopkRouter",
    "Glm4vMoeTextTopkRouter", "Glm5NextTextTopkRouter", "GlmMoeDsaTopkRouter",
    "GptOssTopKRouter", "GraniteMoeHybridTopKRouter", "GraniteMoeSharedTopKRouter",
    "GraniteMoeSWATopKRouter", "GraniteMoeTopKRouter", "HYV3TopKRouter", "HYV4TopkRouter",
    "InklingTopkRouter", "JambaTopKRouter", "KimiLinearTopkRouter", "Kolibri1TopKRouter",
    "LagunaTopKRouter", "Lfm2MoeTopKRouter", "MellumTopKRouter", "MiMoV2FlashTopkRouter",
    "MiniMaxM2TopKRouter", "MiniMaxM3VLTopKRouter", "MiniMaxTopKRouter", "Mistral4TopkRouter",
    "MistralLarge4TextTopkRouter", "MixtralTopKRouter", "MuseSparkTopkRouter",
    "NemotronHTopkRouter", "OlmoeTopKRouter", "OpenAIPrivacyFilterTopKRouter",
    "Qwen2MoeTopKRouter", "Qwen3_5MoeTopKRouter", "Qwen3MoeTopKRouter", "Qwen3NextTopKRouter",
    "Qwen3OmniMoeTalkerTextTopKRouter", "Qwen3OmniMoeTextTopKRouter",
    "Qwen3OmniMoeThinkerTextTopKRouter", "Qwen3VLMoeTextTopKRouter", "Qwen4ExpTextTopKRouter",
    "SolarOpenTopkRouter", "Step3p7TopKRouter", "UnlimitedOcrTextTopkRouter",
)  # fmt: skip
"""`F.linear(x, self.weight)`."""

TABLES = (
    "BeitRelativePositionBias", "Data2VecVisionRelativePositionBias",
    "SwinRelativePositionBias",
)  # fmt: skip
"""Numbers that are looked up."""

OTHERS = {
    "DbrxExpertGLU": {"w1": -1, "v1": -1, "w2": -2},
    "InklingSharedExperts": {"gate_proj": -1, "up_proj": -1, "down_proj": -1},
    "JetMoeParallelExperts": {"weight": -1},
    "NemotronHExperts": {"up_proj": -1, "down_proj": -1},
}

EXPERTS: dict[str, dict[str, int]] = (
    {name: {"gate_up_proj": -1, "down_proj": -1} for name in GATE_UP_DOWN}
    | {name: {"gate_up_proj": -2, "down_proj": -2} for name in TRANSPOSED}
    | {name: {"weight": -1} for name in ROUTERS}
    | {name: {} for name in TABLES}
    | OTHERS
)
