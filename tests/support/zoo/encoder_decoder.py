"""Encoder-decoders over text. Batch, source length and target length may change."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.zoo.entry import Draw, Entry, define, integers, mask, normal

SIZES = {"batch": 3, "seq": 11, "target": 7}
BART: dict[str, Any] = {
    "vocab_size": 101,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 72,
    "decoder_ffn_dim": 72,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
T5: dict[str, Any] = {
    "vocab_size": 101,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 72,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "decoder_start_token_id": 0,
}
BERT: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 72,
    "max_position_embeddings": 64,
}
GEMMA: dict[str, Any] = BERT | {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8, "pad_token_id": 0}
DRAWS: dict[str, Draw] = {
    "input_ids": integers("batch", "seq"),
    "attention_mask": mask("batch", "seq"),
    "decoder_input_ids": integers("batch", "target"),
}


def translate(name: str, model: str, settings: dict[str, Any], cache: bool = False) -> Entry:
    """An encoder-decoder from ids to ids, whose outputs hold its keys and values where `cache` is set."""
    return define(name, "encoder-decoder", model, settings, DRAWS, SIZES, {"use_cache": cache})


ENTRIES: tuple[Entry, ...] = (
    translate("bart", "BartForConditionalGeneration", BART, cache=True),
    translate("bart-no-cache", "BartModel", BART),
    translate("bigbird-pegasus", "BigBirdPegasusForConditionalGeneration", BART | {"attention_type": "original_full"}),
    translate("blenderbot", "BlenderbotForConditionalGeneration", BART),
    translate("blenderbot-small", "BlenderbotSmallForConditionalGeneration", BART),
    translate(
        "encoder-decoder",
        "EncoderDecoderModel",
        {
            "encoder": BERT | {"model_type": "bert"},
            "decoder": BERT | {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
            "decoder_start_token_id": 1,
            "pad_token_id": 0,
        },
    ),
    translate(
        "fsmt",
        "FSMTForConditionalGeneration",
        BART | {"src_vocab_size": 101, "tgt_vocab_size": 101, "vocab_size": 101, "langs": ["en", "de"]},
    ),
    translate(
        "led",
        "LEDForConditionalGeneration",
        BART | {"attention_window": 4, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64},
    ),
    translate("longt5-local", "LongT5ForConditionalGeneration", T5 | {"local_radius": 3}),
    translate(
        "longt5-global",
        "LongT5ForConditionalGeneration",
        T5 | {"local_radius": 3, "encoder_attention_type": "transient-global", "global_block_size": 4},
    ),
    translate("m2m-100", "M2M100ForConditionalGeneration", BART),
    translate("marian", "MarianMTModel", BART),
    translate("mbart", "MBartForConditionalGeneration", BART, cache=True),
    translate("mt5", "MT5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu"}),
    translate(
        "mvp", "MvpForConditionalGeneration", BART | {"use_prompt": True, "prompt_length": 5, "prompt_mid_dim": 16}
    ),
    translate("pegasus", "PegasusForConditionalGeneration", BART),
    translate("pegasus-x", "PegasusXForConditionalGeneration", BART | {"num_global_tokens": 4, "block_size": 4}),
    translate("plbart", "PLBartForConditionalGeneration", BART),
    translate(
        "prophetnet",
        "ProphetNetForConditionalGeneration",
        {
            "vocab_size": 101,
            "hidden_size": 32,
            "max_position_embeddings": 64,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "encoder_ffn_dim": 72,
            "decoder_ffn_dim": 72,
        },
    ),
    translate("t5", "T5ForConditionalGeneration", T5, cache=True),
    translate("t5-no-cache", "T5Model", T5),
    translate(
        "t5gemma",
        "T5GemmaForConditionalGeneration",
        {"encoder": GEMMA, "decoder": GEMMA | {"cross_attention_hidden_size": 32}, "vocab_size": 101},
    ),
    translate("umt5", "UMT5ForConditionalGeneration", T5),
    define(
        "pix2struct",
        "encoder-decoder",
        "Pix2StructForConditionalGeneration",
        {
            "vision_config": {
                "hidden_size": 32,
                "patch_embed_hidden_size": 27,
                "d_ff": 72,
                "d_kv": 8,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "seq_len": 64,
                "patch_size": 3,
                "relative_attention_num_buckets": 8,
            },
            "text_config": {
                "vocab_size": 101,
                "hidden_size": 32,
                "d_kv": 8,
                "d_ff": 72,
                "num_layers": 2,
                "num_heads": 4,
                "relative_attention_num_buckets": 8,
            },
        },
        {
            "flattened_patches": integers("batch", "seq", 29, low=0, high=20, dtype=torch.float32),
            "attention_mask": mask("batch", "seq"),
            "decoder_input_ids": DRAWS["decoder_input_ids"],
        },
        SIZES,
        {"use_cache": False},
    ),
    define(
        "vision-encoder-decoder",
        "encoder-decoder",
        "VisionEncoderDecoderModel",
        {
            "encoder": BERT | {"model_type": "vit", "image_size": 28, "patch_size": 7},
            "decoder": BERT | {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
            "decoder_start_token_id": 1,
            "pad_token_id": 0,
        },
        {"pixel_values": normal("batch", 3, 28, 28), "decoder_input_ids": DRAWS["decoder_input_ids"]},
        {"batch": 5, "target": 7},
        {"use_cache": False},
    ),
)
