"""Language models whose text holds places for images."""

from __future__ import annotations

from typing import Any

from tests.support.zoo.entry import Draw, Entry, after, define, fixed, integers, mask, normal, ones, zeros
from tests.support.zoo.text import GROUPED, TEXT
from tests.support.zoo.vision import TRANSFORMER

# An image of 28 x 28 in patches of 7 gives 16 patches; the id 100 stands for one of them in the text.
IMAGE = 100
SIZES = {"batch": 3, "seq": 11}
IDS = integers("batch", "seq", high=IMAGE)
MASK = mask("batch", "seq")
PIXELS = normal("batch", 3, 28, 28)
LANGUAGE: dict[str, Any] = TEXT | GROUPED | {"model_type": "llama"}
QFORMER: dict[str, Any] = TEXT | {"encoder_hidden_size": 32, "cross_attention_frequency": 1}


def prompt(
    name: str,
    model: str,
    settings: dict[str, Any],
    patches: int = 16,
    pixels: Draw = PIXELS,
    cache: bool = False,
    text: dict[str, Any] | None = None,
    vision: dict[str, Any] | None = None,
    **extra: Draw,
) -> Entry:
    """A language model whose text holds the given number of places for the patches of its image."""
    draws = {"input_ids": after([IMAGE] * patches, IDS), "attention_mask": MASK, "pixel_values": pixels}
    configs = {"text_config": LANGUAGE | (text or {}), "vision_config": TRANSFORMER | (vision or {})}
    tokens = {"image_token_index": IMAGE, "image_token_id": IMAGE}
    return define(
        name,
        "multimodal",
        model,
        configs | tokens | settings,
        draws | extra,
        {"batch": 3, "seq": patches + 11},
        {"use_cache": cache},
    )


ENTRIES: tuple[Entry, ...] = (
    prompt(
        "aya-vision",
        "AyaVisionForConditionalGeneration",
        {"downsample_factor": 2, "vision_feature_layer": -1},
        patches=4,
        text={"model_type": "cohere2"},
        vision={"model_type": "siglip_vision_model"},
    ),
    prompt(
        "blip-2",
        "Blip2ForConditionalGeneration",
        {"qformer_config": QFORMER, "num_query_tokens": 6},
        patches=6,
        text={"model_type": "opt"},
    ),
    prompt(
        "got-ocr2",
        "GotOcr2ForConditionalGeneration",
        {},
        patches=1,
        text={"model_type": "qwen2"},
        vision={"output_channels": 16, "mlp_dim": 40, "window_size": 2, "global_attn_indexes": [1]},
    ),
    prompt(
        "idefics3",
        "Idefics3ForConditionalGeneration",
        {"scale_factor": 2},
        patches=4,
        pixels=normal("batch", 1, 3, 28, 28),
    ),
    prompt(
        "instructblip",
        "InstructBlipForConditionalGeneration",
        {"qformer_config": QFORMER, "num_query_tokens": 6},
        patches=6,
        text={"model_type": "opt"},
        qformer_input_ids=integers("batch", 9),
        qformer_attention_mask=ones("batch", 9),
    ),
    prompt(
        "internvl",
        "InternVLForConditionalGeneration",
        {"downsample_ratio": 0.5},
        patches=4,
        text={"model_type": "qwen2"},
        vision={"image_size": [28, 28], "patch_size": [7, 7]},
    ),
    prompt("llava", "LlavaForConditionalGeneration", {}, cache=True, vision={"model_type": "clip_vision_model"}),
    prompt(
        "llava-siglip",
        "LlavaForConditionalGeneration",
        {"vision_feature_select_strategy": "full"},
        text={"model_type": "qwen2"},
        vision={"model_type": "siglip_vision_model"},
    ),
    prompt(
        "llava-next",
        "LlavaNextForConditionalGeneration",
        {"image_grid_pinpoints": [[28, 28]]},
        patches=36,
        pixels=normal("batch", 2, 3, 28, 28),
        vision={"model_type": "clip_vision_model"},
        image_sizes=fixed([28, 28], "batch", 2),
    ),
    prompt(
        "mistral3",
        "Mistral3ForConditionalGeneration",
        {"spatial_merge_size": 2, "vision_feature_layer": -1},
        patches=4,
        text={"model_type": "mistral"},
        vision={"model_type": "pixtral"},
        image_sizes=fixed([28, 28], "batch", 2),
    ),
    prompt(
        "paligemma",
        "PaliGemmaForConditionalGeneration",
        {"projection_dim": 32},
        text={"model_type": "gemma"},
        vision={"model_type": "siglip_vision_model", "projection_dim": 32},
    ),
    prompt(
        "smolvlm",
        "SmolVLMForConditionalGeneration",
        {"scale_factor": 2},
        patches=4,
        pixels=normal("batch", 1, 3, 28, 28),
    ),
    prompt(
        "vipllava",
        "VipLlavaForConditionalGeneration",
        {"vision_feature_layers": [0, 1]},
        vision={"model_type": "clip_vision_model"},
    ),
    define(
        "kosmos-2",
        "multimodal",
        "Kosmos2ForConditionalGeneration",
        {
            "text_config": {
                "vocab_size": 101,
                "embed_dim": 32,
                "layers": 2,
                "ffn_dim": 72,
                "attention_heads": 4,
                "max_position_embeddings": 64,
                "pad_token_id": 1,
            },
            "vision_config": TRANSFORMER,
            "latent_query_num": 6,
        },
        {
            "input_ids": IDS,
            "attention_mask": MASK,
            "pixel_values": PIXELS,
            "image_embeds_position_mask": after([0, 1, 1, 1, 1, 1, 1], zeros("batch", "seq")),
        },
        SIZES,
        {"use_cache": False},
    ),
    define(
        "mllama",
        "multimodal",
        "MllamaForConditionalGeneration",
        {
            "image_token_index": IMAGE,
            "text_config": TEXT | GROUPED | {"cross_attention_layers": [1]},
            "vision_config": TRANSFORMER
            | {
                "attention_heads": 4,
                "num_global_layers": 1,
                "vision_output_dim": 64,
                "intermediate_layers_indices": [1],
                "max_num_tiles": 1,
                "supported_aspect_ratios": [[1, 1]],
            },
        },
        {
            "input_ids": after([IMAGE], IDS),
            "attention_mask": MASK,
            "pixel_values": normal("batch", 1, 1, 3, 28, 28),
            "aspect_ratio_ids": ones("batch", 1),
            "aspect_ratio_mask": ones("batch", 1, 1),
            "cross_attention_mask": ones("batch", "seq", 1, 1),
        },
        SIZES,
        {"use_cache": False},
    ),
    define(
        "qwen2-vl",
        "multimodal",
        "Qwen2VLForConditionalGeneration",
        {
            "text_config": TEXT
            | GROUPED
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}},
            "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 7},
            "image_token_id": IMAGE,
            "video_token_id": 3,
            "vision_start_token_id": 4,
            "vision_end_token_id": 5,
        },
        {
            "input_ids": after([4, IMAGE, IMAGE, IMAGE, IMAGE, 5], integers(1, "seq", low=6, high=IMAGE)),
            "attention_mask": ones(1, "seq"),
            "pixel_values": normal(16, 294),
            "mm_token_type_ids": after([0, 1, 1, 1, 1], zeros(1, "seq")),
            "image_grid_thw": fixed([1, 4, 4], 1, 3),
        },
        {"seq": 11},
        {"use_cache": False},
    ),
)
