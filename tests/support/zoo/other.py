"""Time series, decisions, latents, and what else belongs to no other family."""

from __future__ import annotations

from typing import Any

from tests.support.zoo.entry import Entry, define, fixed, integers, mask, normal, ones, ramp, uniform, zeros

SERIES: dict[str, Any] = {
    "prediction_length": 6,
    "context_length": 14,
    "lags_sequence": [1, 2, 3],
    "num_time_features": 2,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "label_length": 4,
    "moving_average": 5,
    "sampling_factor": 2,
}
PATCHED: dict[str, Any] = {
    "num_input_channels": 3,
    "context_length": 32,
    "patch_length": 4,
    "patch_stride": 4,
    "d_model": 16,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "num_attention_heads": 2,
    "ffn_dim": 24,
    "prediction_length": 6,
    "num_targets": 4,
}
LATENTS: dict[str, Any] = {
    "num_latents": 6,
    "d_latents": 32,
    "d_model": 24,
    "num_blocks": 1,
    "num_self_attends_per_block": 2,
    "num_self_attention_heads": 4,
    "num_cross_attention_heads": 4,
    "vocab_size": 101,
    "max_position_embeddings": 17,
    "image_size": 28,
    "num_labels": 10,
}


def forecast(name: str, model: str, **settings: Any) -> Entry:
    """A forecaster over past values with lags up to 3 and two time features."""
    draws = {
        "past_values": uniform("batch", 17),
        "past_time_features": normal("batch", 17, 2),
        "past_observed_mask": ones("batch", 17),
        "future_values": uniform("batch", 6),
        "future_time_features": normal("batch", 6, 2),
    }
    return define(name, "other", model, SERIES | settings, draws, {"batch": 5}, {"use_cache": False})


def patched(name: str, model: str, **settings: Any) -> Entry:
    """A model over patches of three series."""
    return define(name, "other", model, PATCHED | settings, {"past_values": normal("batch", 32, 3)}, {"batch": 5})


ENTRIES: tuple[Entry, ...] = (
    forecast("autoformer", "AutoformerModel"),
    # Its sparse attention draws keys at random.
    forecast("informer", "InformerModel", attention_type="full"),
    forecast("time-series-transformer", "TimeSeriesTransformerModel"),
    patched("patchtst", "PatchTSTForPrediction", loss="mse"),
    patched("patchtst-classifier", "PatchTSTForClassification", use_cls_token=True, pooling_type=None),
    patched("patchtsmixer", "PatchTSMixerForPrediction", mode="mix_channel"),
    patched("patchtsmixer-regression", "PatchTSMixerForRegression", self_attn=True, self_attn_heads=2),
    define(
        "timesfm",
        "other",
        "TimesFmModel",
        {
            "patch_length": 8,
            "context_length": 32,
            "horizon_length": 4,
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "intermediate_size": 40,
            "head_dim": 8,
            "num_attention_heads": 4,
        },
        {"past_values": normal("batch", 32), "past_values_padding": zeros("batch", 32), "freq": fixed([1], "batch", 1)},
        {"batch": 5},
    ),
    define(
        "timesfm2_5",
        "other",
        "TimesFm2_5Model",
        {
            "patch_length": 8,
            "context_length": 32,
            "horizon_length": 4,
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "intermediate_size": 40,
            "head_dim": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
        },
        {"past_values": normal("batch", 32)},
        {"batch": 5},
    ),
    define(
        "decision-transformer",
        "other",
        "DecisionTransformerModel",
        {
            "state_dim": 5,
            "act_dim": 3,
            "hidden_size": 32,
            "max_ep_len": 40,
            "n_positions": 64,
            "n_layer": 2,
            "n_head": 4,
        },
        {
            "states": normal("batch", "steps", 5),
            "actions": normal("batch", "steps", 3),
            "rewards": normal("batch", "steps", 1),
            "returns_to_go": normal("batch", "steps", 1),
            "timesteps": ramp("batch", "steps"),
            "attention_mask": ones("batch", "steps"),
        },
        {"batch": 2, "steps": 9},
    ),
    define(
        "perceiver-text",
        "other",
        "PerceiverForMaskedLM",
        LATENTS,
        {"inputs": integers("batch", 17), "attention_mask": mask("batch", 17)},
        {"batch": 3},
    ),
    define(
        "perceiver-image",
        "other",
        "PerceiverForImageClassificationLearned",
        LATENTS,
        {"inputs": normal("batch", 3, 28, 28)},
        {"batch": 3},
    ),
)
