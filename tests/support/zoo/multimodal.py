"""Models over text and images, layout, sound or regions, in two towers or in one."""

from __future__ import annotations

from typing import Any

from tests.support.zoo.audio import WAVES
from tests.support.zoo.entry import Draw, Entry, boxes, define, fixed, integers, mask, normal, ones, uniform
from tests.support.zoo.text import TEXT
from tests.support.zoo.vision import STAGES, TRANSFORMER

PAIR_SIZES = {"batch": 3, "seq": 11, "images": 5}
JOINT_SIZES = {"batch": 3, "seq": 11}
IDS = integers("batch", "seq")
MASK = mask("batch", "seq")
PIXELS = normal("batch", 3, 28, 28)


def pair(
    name: str, model: str, text: dict[str, Any] | None = None, vision: dict[str, Any] | None = None, **settings: Any
) -> Entry:
    """Two towers that score a number of texts against a number of images."""
    draws = {"input_ids": IDS, "attention_mask": MASK, "pixel_values": normal("images", 3, 28, 28)}
    towers = {
        "text_config": TEXT | {"projection_dim": 16} | (text or {}),
        "vision_config": TRANSFORMER | {"projection_dim": 16} | (vision or {}),
    }
    return define(name, "multimodal", model, towers | {"projection_dim": 16} | settings, draws, PAIR_SIZES)


def joint(
    name: str, model: str, settings: dict[str, Any], options: dict[str, Any] | None = None, **extra: Draw
) -> Entry:
    """A model that takes each text together with something else, named in `extra`."""
    return define(
        name, "multimodal", model, settings, {"input_ids": IDS, "attention_mask": MASK} | extra, JOINT_SIZES, options
    )


ENTRIES: tuple[Entry, ...] = (
    pair("altclip", "AltCLIPModel", text={"project_dim": 16}),
    pair("blip-retrieval", "BlipModel", text={"encoder_hidden_size": 32}),
    pair("chinese-clip", "ChineseCLIPModel"),
    pair("clip", "CLIPModel"),
    pair(
        "groupvit",
        "GroupViTModel",
        vision={"depths": [1, 1, 1], "num_group_tokens": [6, 4, 0], "num_output_groups": [6, 4, 4]},
        projection_intermediate_dim=24,
    ),
    pair("siglip", "SiglipModel"),
    pair("aimv2-pair", "Aimv2Model"),
    pair("metaclip-2", "MetaClip2Model"),
    define(
        "align",
        "multimodal",
        "AlignModel",
        {
            "text_config": TEXT,
            "projection_dim": 16,
            "vision_config": {
                "width_coefficient": 0.5,
                "depth_coefficient": 0.5,
                "hidden_dim": 32,
                "in_channels": [32, 16, 24],
                "out_channels": [16, 24, 32],
                "kernel_sizes": [3, 3, 5],
                "strides": [1, 2, 2],
                "num_block_repeats": [1, 1, 2],
                "expand_ratios": [1, 6, 6],
            },
        },
        {"input_ids": IDS, "attention_mask": MASK, "pixel_values": normal("images", 3, 28, 28)},
        PAIR_SIZES,
    ),
    define(
        "clap",
        "multimodal",
        "ClapModel",
        {
            "text_config": TEXT | {"projection_dim": 16},
            "projection_dim": 16,
            "audio_config": {
                "window_size": 4,
                "num_mel_bins": 16,
                "spec_size": 32,
                "patch_size": 2,
                "patch_stride": [2, 2],
                "hidden_size": 32,
                "projection_dim": 16,
                "depths": [1, 1],
                "num_attention_heads": [2, 4],
                "num_hidden_layers": 2,
                "patch_embeds_hidden_size": 16,
                "num_classes": 7,
            },
        },
        {"input_ids": IDS, "attention_mask": MASK, "input_features": normal("images", 1, 64, 16)},
        PAIR_SIZES,
    ),
    define(
        "clipseg",
        "multimodal",
        "CLIPSegForImageSegmentation",
        {
            "text_config": TEXT,
            "vision_config": TRANSFORMER,
            "projection_dim": 16,
            "extract_layers": [0, 1],
            "reduce_dim": 16,
            "decoder_num_attention_heads": 2,
            "decoder_intermediate_size": 24,
        },
        {"input_ids": IDS, "attention_mask": MASK, "pixel_values": PIXELS},
        JOINT_SIZES,
    ),
    define(
        "owlvit",
        "multimodal",
        "OwlViTForObjectDetection",
        {"text_config": TEXT, "vision_config": TRANSFORMER, "projection_dim": 32},
        {"input_ids": integers("batch", 9), "attention_mask": ones("batch", 9), "pixel_values": PIXELS},
        {"batch": 3},
    ),
    define(
        "owlv2",
        "multimodal",
        "Owlv2ForObjectDetection",
        {"text_config": TEXT, "vision_config": TRANSFORMER, "projection_dim": 32},
        {"input_ids": integers("batch", 9), "attention_mask": ones("batch", 9), "pixel_values": PIXELS},
        {"batch": 3},
    ),
    define(
        "siglip2-vision",
        "multimodal",
        "Siglip2VisionModel",
        TRANSFORMER | {"num_patches": 16},
        {
            "pixel_values": normal("batch", 16, 147),
            "pixel_attention_mask": ones("batch", 16),
            "spatial_shapes": fixed([4, 4], "batch", 2),
        },
        {"batch": 3},
    ),
    define(
        "x-clip",
        "multimodal",
        "XCLIPModel",
        {
            "text_config": TEXT,
            "projection_dim": 16,
            "prompt_num_attention_heads": 4,
            "prompt_layers": 1,
            "vision_config": TRANSFORMER
            | {"mit_hidden_size": 16, "mit_intermediate_size": 24, "mit_num_attention_heads": 4, "num_frames": 4},
        },
        {"input_ids": IDS, "attention_mask": MASK, "pixel_values": normal("images", 4, 3, 28, 28)},
        PAIR_SIZES,
    ),
    joint(
        "blip",
        "BlipForConditionalGeneration",
        {
            "text_config": TEXT | {"encoder_hidden_size": 32, "sep_token_id": 2},
            "vision_config": TRANSFORMER,
            "projection_dim": 16,
            "image_text_hidden_size": 16,
        },
        pixel_values=PIXELS,
    ),
    joint(
        "bridgetower",
        "BridgeTowerModel",
        {
            "text_config": TEXT,
            "vision_config": TRANSFORMER | {"hidden_size": 64},
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
        },
        pixel_values=PIXELS,
    ),
    joint(
        "flava",
        "FlavaModel",
        {
            "text_config": TEXT,
            "image_config": TRANSFORMER,
            "projection_dim": 16,
            "hidden_size": 32,
            "multimodal_config": TEXT,
            "image_codebook_config": {"hidden_size": 8, "vocab_size": 20},
        },
        pixel_values=PIXELS,
    ),
    joint("git", "GitForCausalLM", TEXT | {"vision_config": TRANSFORMER}, {"use_cache": False}, pixel_values=PIXELS),
    joint("bros", "BrosModel", TEXT | {"hidden_size": 64}, bbox=uniform("batch", "seq", 8)),
    joint(
        "layoutlm",
        "LayoutLMForTokenClassification",
        TEXT | {"max_2d_position_embeddings": 128},
        bbox=boxes("batch", "seq", 4),
    ),
    joint(
        "layoutlmv3",
        "LayoutLMv3ForTokenClassification",
        TEXT
        | {"max_2d_position_embeddings": 128, "coordinate_size": 6, "shape_size": 4, "input_size": 28, "patch_size": 7},
        bbox=boxes("batch", "seq", 4),
        pixel_values=PIXELS,
    ),
    joint(
        "lilt",
        "LiltForTokenClassification",
        TEXT | {"max_2d_position_embeddings": 128, "hidden_size": 48},
        bbox=boxes("batch", "seq", 4),
    ),
    joint(
        "lxmert",
        "LxmertModel",
        {
            "vocab_size": 101,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "intermediate_size": 72,
            "l_layers": 1,
            "x_layers": 1,
            "r_layers": 1,
            "visual_feat_dim": 20,
        },
        visual_feats=normal("batch", 5, 20),
        visual_pos=uniform("batch", 5, 4),
    ),
    joint(
        "markuplm",
        "MarkupLMModel",
        TEXT
        | {
            "max_xpath_tag_unit_embeddings": 20,
            "max_xpath_subs_unit_embeddings": 20,
            "tag_pad_id": 19,
            "subs_pad_id": 19,
            "xpath_unit_hidden_size": 8,
            "max_depth": 4,
        },
        xpath_tags_seq=integers("batch", "seq", 4, low=0, high=20),
        xpath_subs_seq=integers("batch", "seq", 4, low=0, high=20),
    ),
    joint(
        "udop",
        "UdopForConditionalGeneration",
        {
            "vocab_size": 101,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 72,
            "num_layers": 2,
            "num_decoder_layers": 2,
            "num_heads": 4,
            "max_2d_position_embeddings": 128,
            "image_size": 28,
            "patch_size": 7,
        },
        {"use_cache": False},
        bbox=uniform("batch", "seq", 4),
        pixel_values=PIXELS,
        decoder_input_ids=integers("batch", 7),
    ),
    # From pixels, ViLT draws its patches in a random order; from embeddings it draws nothing.
    joint(
        "vilt",
        "ViltForQuestionAnswering",
        TEXT | TRANSFORMER,
        image_embeds=normal("batch", 17, 32),
        pixel_mask=ones("batch", 17),
    ),
    joint(
        "visual-bert",
        "VisualBertModel",
        TEXT | {"visual_embedding_dim": 20},
        visual_embeds=normal("batch", 5, 20),
        visual_attention_mask=ones("batch", 5),
    ),
    joint(
        "vision-text-dual-encoder",
        "VisionTextDualEncoderModel",
        {
            "text_config": TEXT | {"model_type": "bert"},
            "vision_config": TRANSFORMER | {"model_type": "vit"},
            "projection_dim": 16,
        },
        pixel_values=PIXELS,
    ),
    define(
        "speech-encoder-decoder",
        "multimodal",
        "SpeechEncoderDecoderModel",
        {
            "encoder": TEXT
            | {
                "model_type": "wav2vec2",
                "conv_dim": [16, 16, 16],
                "conv_stride": [5, 2, 2],
                "conv_kernel": [10, 3, 3],
                "num_conv_pos_embeddings": 8,
                "num_conv_pos_embedding_groups": 2,
            },
            "decoder": TEXT | {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
            "decoder_start_token_id": 1,
            "pad_token_id": 0,
        },
        {"input_values": WAVES, "decoder_input_ids": integers("batch", "target")},
        {"batch": 3, "samples": 401, "target": 7},
        {"use_cache": False},
    ),
    define(
        "grounding-dino",
        "multimodal",
        "GroundingDinoForObjectDetection",
        {
            "backbone_config": STAGES
            | {
                "model_type": "resnet",
                "embedding_size": 8,
                "layer_type": "basic",
                "out_features": ["stage2", "stage3", "stage4"],
            },
            "text_config": TEXT | {"model_type": "bert"},
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "encoder_ffn_dim": 40,
            "decoder_ffn_dim": 40,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "num_queries": 9,
            "num_feature_levels": 3,
            "encoder_n_points": 2,
            "decoder_n_points": 2,
            "max_text_len": 16,
        },
        {"input_ids": IDS, "attention_mask": ones("batch", "seq"), "pixel_values": normal("batch", 3, 64, 64)},
        JOINT_SIZES,
    ),
)
