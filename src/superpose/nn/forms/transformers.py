"""Experts of mixtures, routers, tables and norms in `transformers`, known by their names.

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

NORMS = (
    "AXK1RMSNorm", "AXK2RMSNorm", "AfmoeRMSNorm", "Aimv2RMSNorm", "ApertusRMSNorm",
    "ArceeRMSNorm", "AriaTextRMSNorm", "BailingHybridRMSNorm", "BambaRMSNorm",
    "BambaRMSNormGated", "BeamRMSNorm", "BitNetRMSNorm", "BltRMSNorm", "ChameleonRMSNorm",
    "ClvpRMSNorm", "Cohere2LayerNorm", "Cohere2MoeLayerNorm", "Cohere2MoeRMSNorm",
    "CohereCompassLayerNorm", "CohereLayerNorm", "Cosmos3EdgeTextRMSNorm", "CsmRMSNorm",
    "CwmRMSNorm", "DebertaLayerNorm", "DeepseekOcr2TextRMSNorm", "DeepseekOcr2VisionRMSNorm",
    "DeepseekV2RMSNorm", "DeepseekV32RMSNorm", "DeepseekV3RMSNorm", "DeepseekV4RMSNorm",
    "Deimv2RMSNorm", "DiaRMSNorm", "DiffLlamaRMSNorm", "DiffusionGemmaRMSNorm", "DogeRMSNorm",
    "Dots1RMSNorm", "EmbeddingGemma2RMSNorm", "Emu3RMSNorm", "Ernie4_5RMSNorm",
    "Ernie4_5_MoeRMSNorm", "Ernie4_5_VLMoeRMSNorm", "EuroBertRMSNorm", "EvollaRMSNorm",
    "Exaone4RMSNorm", "Exaone4_5_RMSNorm", "ExaoneMoeRMSNorm", "FalconH1RMSNorm",
    "FalconMambaRMSNorm", "FlexOlmoRMSNorm", "FlintRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm",
    "Gemma3nRMSNorm", "Gemma4RMSNorm", "Gemma4UnifiedRMSNorm", "GemmaRMSNorm",
    "Glm4MoeLiteRMSNorm", "Glm4MoeRMSNorm", "Glm4RMSNorm", "Glm4vMoeRMSNorm",
    "Glm4vMoeTextRMSNorm", "Glm4vRMSNorm", "Glm5NextRMSNorm", "Glm5NextTextRMSNorm",
    "GlmImageRMSNorm", "GlmMoeDsaRMSNorm", "GlmOcrRMSNorm", "GlmRMSNorm", "GptOssRMSNorm",
    "GradiumPhononTTSTimestepNorm", "Granite4VisionTextRMSNorm", "GraniteMoeHybridRMSNorm",
    "GraniteMoeHybridRMSNormGated", "GraniteMoeRMSNorm", "GraniteMoeSWARMSNorm",
    "GraniteMoeSharedRMSNorm", "GraniteRMSNorm", "GraniteSWARMSNorm", "HYV3RMSNorm",
    "HYV4RMSNorm", "HeliumRMSNorm", "HiggsAudioV2RMSNorm", "HunYuanDenseV1RMSNorm",
    "HunYuanMoEV1RMSNorm", "HunYuanVLRMSNorm", "HyperCLOVAXRMSNorm", "Idefics2RMSNorm",
    "Idefics3RMSNorm", "IdeficsRMSNorm", "ImageGPTLayerNorm", "InklingRMSNorm",
    "InternVLVisionRMSNorm", "JambaRMSNorm", "JetMoeRMSNorm", "KimiLinearRMSNorm",
    "Kolibri1RMSNorm", "Kosmos2_5LayerNorm", "KyutaiSpeechToTextRMSNorm", "LagunaRMSNorm",
    "Lfm2MoeRMSNorm", "Lfm2RMSNorm", "LightOnOcrRMSNorm", "Llama4TextRMSNorm", "LlamaRMSNorm",
    "LongT5LayerNorm", "LongcatFlashRMSNorm", "MT5LayerNorm", "Mamba2RMSNorm", "MambaRMSNorm",
    "MambaRMSNormGated", "MellumRMSNorm", "MiMoV2FlashRMSNorm", "MiniCPM3RMSNorm",
    "MiniMaxM2RMSNorm", "MiniMaxM3VLRMSNorm", "MiniMaxRMSNorm", "Ministral3RMSNorm",
    "MinistralRMSNorm", "Mistral3RMSNorm", "Mistral4RMSNorm", "MistralLarge4RMSNorm",
    "MistralRMSNorm", "MixtralRMSNorm", "MllamaTextRMSNorm", "Molmo2RMSNorm",
    "MoonshineStreamingLayerNorm", "MoshiRMSNorm", "MuseGlimmerAssistantRMSNorm",
    "MuseGlimmerRMSNorm", "MuseGlimmerTextCenteredRMSNorm", "MuseSparkRMSNorm",
    "MuseSparkTextCenteredRMSNorm", "MuseSparkTextInputScaledRMSNorm", "NemotronHRMSNorm",
    "NemotronH_Omni_RMSNorm", "NeoMMERMSNorm", "NeuCodecRMSNorm", "NoNorm", "Olmo2RMSNorm",
    "Olmo3RMSNorm", "OlmoHybridRMSNorm", "OlmoeRMSNorm", "OpenAIPrivacyFilterRMSNorm",
    "Ovis2RMSNorm", "PaddleOCRRMSNorm", "PeAudioEncoderRMSNorm", "PeAudioVideoEncoderRMSNorm",
    "PeVideoEncoderRMSNorm", "Phi3RMSNorm", "Phi4MultimodalRMSNorm", "Pix2StructLayerNorm",
    "PixtralRMSNorm", "PocketTTSTimestepNorm", "Pop2PianoLayerNorm", "QianfanOCRVisionRMSNorm",
    "Qwen2MoeRMSNorm", "Qwen2RMSNorm", "Qwen2VLRMSNorm", "Qwen2_5OmniRMSNorm",
    "Qwen2_5_VLRMSNorm", "Qwen3MoeRMSNorm", "Qwen3NextRMSNorm", "Qwen3OmniMoeCode2WavRMSNorm",
    "Qwen3OmniMoeRMSNorm", "Qwen3OmniMoeTextRMSNorm", "Qwen3OmniMoeThinkerTextRMSNorm",
    "Qwen3RMSNorm", "Qwen3VLMoeTextRMSNorm", "Qwen3VLTextRMSNorm", "Qwen3_5MoeRMSNorm",
    "Qwen3_5RMSNorm", "Qwen4ExpTextRMSNorm", "RecurrentGemmaRMSNorm", "Sapiens2RMSNorm",
    "SeedOssRMSNorm", "SmolLM3RMSNorm", "SolarOpenRMSNorm", "Step3p7RMSNorm",
    "SwitchTransformersLayerNorm", "T5Gemma2RMSNorm", "T5GemmaRMSNorm", "T5LayerNorm",
    "TimesFm2_5RMSNorm", "TimesFmRMSNorm", "UMT5LayerNorm", "UdopLayerNorm", "UltraVBertRMSNorm",
    "UltrabertRMSNorm", "UnlimitedOcrTextRMSNorm", "VaultGemmaRMSNorm",
    "VibeVoiceAcousticTokenizerRMSNorm", "VibeVoiceAsrRMSNorm", "VibeVoiceRMSNorm",
    "VoxtralRealtimeRMSNorm", "Xcodec2RMSNorm", "YoutuRMSNorm", "Zamba2RMSNorm", "ZambaRMSNorm",
    "ZayaRMSNorm", "xLSTMRMSNorm",
)  # fmt: skip
"""y = weight · f(x) over the last dimension, which take a weight for each row."""

OTHERS = {
    "DbrxExpertGLU": {"w1": -1, "v1": -1, "w2": -2},
    "InklingSharedExperts": {"gate_proj": -1, "up_proj": -1, "down_proj": -1},
    "JetMoeParallelExperts": {"weight": -1},
    "NemotronHExperts": {"up_proj": -1, "down_proj": -1},
}

INPUT_DIMS: dict[str, dict[str, int]] = (
    {name: {"gate_up_proj": -1, "down_proj": -1} for name in GATE_UP_DOWN}
    | {name: {"gate_up_proj": -2, "down_proj": -2} for name in TRANSPOSED}
    | {name: {"weight": -1} for name in ROUTERS}
    | {name: {} for name in TABLES}
    | OTHERS
)
