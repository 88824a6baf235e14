"""State-space models, recurrences and linear attention, alone and mixed with attention."""

from __future__ import annotations

from typing import Any

from tests.support.zoo.entry import Entry, define, integers, mask
from tests.support.zoo.experts import EXPERTS, LATENT
from tests.support.zoo.text import GROUPED, SIZES, TEXT

MAMBA: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "state_size": 6,
    "conv_kernel": 4,
    "pad_token_id": 0,
}
HYBRID: dict[str, Any] = (
    TEXT
    | GROUPED
    | {
        "mamba_d_state": 6,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_n_heads": 4,
        "mamba_n_groups": 1,
        "mamba_d_head": 16,
        "mamba_chunk_size": 4,
    }
)
DELTA: dict[str, Any] = EXPERTS | {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"],
}


def recurrent(name: str, model: str, settings: dict[str, Any], cache: bool = False, masked: bool = True) -> Entry:
    """A decoder with a state carried along the sequence, which is in its outputs where `cache` is set."""
    draws = {"input_ids": integers("batch", "seq")} | ({"attention_mask": mask("batch", "seq")} if masked else {})
    return define(name, "state-space", model, settings, draws, SIZES, {"use_cache": cache})


ENTRIES: tuple[Entry, ...] = (
    recurrent("bamba", "BambaForCausalLM", HYBRID | {"attn_layer_indices": [1]}),
    recurrent("falcon-h1", "FalconH1ForCausalLM", HYBRID | {"mamba_d_ssm": 64}),
    recurrent("falcon-mamba", "FalconMambaForCausalLM", MAMBA),
    recurrent(
        "granite-hybrid", "GraniteMoeHybridForCausalLM", HYBRID | EXPERTS | {"layer_types": ["mamba", "attention"]}
    ),
    recurrent(
        "jamba",
        "JambaForCausalLM",
        HYBRID
        | EXPERTS
        | {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    ),
    recurrent(
        "kimi-linear",
        "KimiLinearForCausalLM",
        EXPERTS
        | LATENT
        | {"linear_head_dim": 8, "linear_num_heads": 4, "layer_types": ["linear_attention", "full_attention"]},
    ),
    recurrent("lfm2", "Lfm2ForCausalLM", TEXT | GROUPED | {"layer_types": ["conv", "full_attention"]}),
    recurrent("mamba", "MambaForCausalLM", MAMBA, cache=True),
    recurrent("mamba-no-cache", "MambaModel", MAMBA, masked=False),
    recurrent("mamba2", "Mamba2ForCausalLM", MAMBA | {"num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 4}),
    recurrent(
        "nemotron-h",
        "NemotronHForCausalLM",
        HYBRID
        | {
            "layers_block_type": ["mamba", "attention"],
            "ssm_state_size": 6,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "n_groups": 1,
            "chunk_size": 4,
        },
    ),
    recurrent("olmo-hybrid", "OlmoHybridForCausalLM", DELTA),
    recurrent("qwen3-next", "Qwen3NextForCausalLM", DELTA),
    recurrent(
        "recurrent-gemma",
        "RecurrentGemmaForCausalLM",
        TEXT
        | {
            "num_key_value_heads": 2,
            "lru_width": 32,
            "attention_window_size": 8,
            "block_types": ["recurrent", "attention"],
        },
    ),
    recurrent(
        "rwkv",
        "RwkvForCausalLM",
        {
            "vocab_size": 101,
            "context_length": 64,
            "hidden_size": 32,
            "attention_hidden_size": 32,
            "num_hidden_layers": 2,
        },
        masked=False,
    ),
    recurrent(
        "xlstm",
        "xLSTMForCausalLM",
        {"vocab_size": 101, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 4, "chunk_size": 4},
        masked=False,
    ),
    recurrent(
        "zamba",
        "ZambaForCausalLM",
        HYBRID
        | {
            "attention_hidden_size": 64,
            "attention_head_dim": 16,
            "n_mamba_heads": 2,
            "num_key_value_heads": 4,
            "num_hidden_layers": 3,
            "layers_block_type": ["mamba", "hybrid", "hybrid"],
        },
    ),
    recurrent(
        "zamba2",
        "Zamba2ForCausalLM",
        HYBRID
        | {
            "n_mamba_heads": 4,
            "mamba_ngroups": 1,
            "chunk_size": 4,
            "num_key_value_heads": 4,
            "num_hidden_layers": 3,
            "layers_block_type": ["mamba", "hybrid", "hybrid"],
        },
    ),
)
