"""Mixtures of experts."""

from __future__ import annotations

from typing import Any

from tests.support.zoo.encoder_decoder import BART, DRAWS, T5
from tests.support.zoo.encoder_decoder import SIZES as TRANSLATION_SIZES
from tests.support.zoo.entry import Entry, define, integers, mask
from tests.support.zoo.text import GROUPED, SIZES, TEXT

# The same few numbers under every name that some architecture gives them.
EXPERTS: dict[str, Any] = (
    TEXT
    | GROUPED
    | {
        "num_experts": 4,
        "num_local_experts": 4,
        "n_routed_experts": 4,
        "moe_num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_topk": 2,
        "moe_k": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "shared_intermediate_size": 40,
        "n_shared_experts": 1,
        "num_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "num_dense_layers": 1,
    }
)
LATENT: dict[str, Any] = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}


def mixture(
    name: str, model: str, settings: dict[str, Any] | None = None, cache: bool = False, drop: tuple[str, ...] = ()
) -> Entry:
    """A decoder whose feed-forward layers pick two of four experts; `drop` names settings that it does not take."""
    kept = {key: value for key, value in (EXPERTS | (settings or {})).items() if key not in drop}
    draws = {"input_ids": integers("batch", "seq"), "attention_mask": mask("batch", "seq")}
    return define(name, "experts", model, kept, draws, SIZES, {"use_cache": cache})


ENTRIES: tuple[Entry, ...] = (
    mixture("afmoe", "AfmoeForCausalLM", {"sliding_window": 8}),
    mixture(
        "dbrx",
        "DbrxForCausalLM",
        {
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 64,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32},
        },
        drop=(
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
            "hidden_size",
            "num_attention_heads",
            "num_hidden_layers",
            "max_position_embeddings",
        ),
    ),
    mixture("deepseek-v2", "DeepseekV2ForCausalLM", LATENT, drop=("head_dim",)),
    mixture("deepseek-v3", "DeepseekV3ForCausalLM", LATENT, drop=("head_dim",)),
    mixture("doge", "DogeForCausalLM", {"is_moe": True, "num_experts": 16}),
    mixture("dots1", "Dots1ForCausalLM", {"sliding_window": 8}),
    mixture("ernie4_5-moe", "Ernie4_5_MoeForCausalLM"),
    mixture("flex-olmo", "FlexOlmoForCausalLM"),
    mixture("glm4-moe", "Glm4MoeForCausalLM"),
    mixture("gpt-oss", "GptOssForCausalLM", {"sliding_window": 8}),
    mixture("granite-moe", "GraniteMoeForCausalLM"),
    mixture("hunyuan-moe", "HunYuanMoEV1ForCausalLM"),
    mixture("jetmoe", "JetMoeForCausalLM", {"kv_channels": 8}),
    mixture("lfm2-moe", "Lfm2MoeForCausalLM", {"layer_types": ["conv", "full_attention"]}),
    mixture("llama4", "Llama4ForCausalLM", {"intermediate_size_mlp": 72, "attention_chunk_size": 8}),
    mixture(
        "longcat-flash",
        "LongcatFlashForCausalLM",
        LATENT
        | {"num_layers": 1, "zero_expert_num": 2, "ffn_hidden_size": 72, "expert_ffn_hidden_size": 24, "head_dim": 4},
    ),
    mixture("minimax", "MiniMaxForCausalLM", {"block_size": 4}),
    mixture("mixtral", "MixtralForCausalLM", cache=True),
    mixture("mixtral-looped", "MixtralForCausalLM", {"experts_implementation": "eager"}),
    mixture("olmoe", "OlmoeForCausalLM"),
    mixture("phimoe", "PhimoeForCausalLM"),
    mixture("qwen2-moe", "Qwen2MoeForCausalLM"),
    mixture("qwen3-moe", "Qwen3MoeForCausalLM", cache=True),
    mixture("qwen3-moe-batched", "Qwen3MoeForCausalLM", {"experts_implementation": "batched_mm"}),
    mixture("solar-open", "SolarOpenForCausalLM"),
    define(
        "switch-transformers",
        "experts",
        "SwitchTransformersForConditionalGeneration",
        T5 | {"num_experts": 4, "expert_capacity": 8, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
        DRAWS,
        TRANSLATION_SIZES,
        {"use_cache": False},
    ),
    define(
        "nllb-moe",
        "experts",
        "NllbMoeForConditionalGeneration",
        BART | {"num_experts": 4, "expert_capacity": 8, "encoder_sparse_step": 2, "decoder_sparse_step": 2},
        DRAWS,
        TRANSLATION_SIZES,
        {"use_cache": False},
    ),
)
