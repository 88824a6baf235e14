"""Vision with an output at every place: detection, segmentation, depth, key points. Only the batch may change."""

from __future__ import annotations

from typing import Any

from tests.support.zoo.entry import Entry, define, fixed, normal, ones, uniform
from tests.support.zoo.vision import SIZES, STAGES, SWIN, TRANSFORMER, image

RESNET: dict[str, Any] = STAGES | {"model_type": "resnet", "embedding_size": 8, "layer_type": "basic"}
DINOV2: dict[str, Any] = TRANSFORMER | {"model_type": "dinov2", "reshape_hidden_states": False}
DETECTION: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_queries": 9,
    "num_labels": 10,
    "backbone_config": RESNET | {"out_features": ["stage4"]},
}
LEVELS = RESNET | {"out_features": ["stage2", "stage3", "stage4"]}
RT_LEVELS = LEVELS | {"model_type": "rt_detr_resnet"}
RT_DETR: dict[str, Any] = DETECTION | {
    "backbone_config": RT_LEVELS,
    "encoder_hidden_dim": 32,
    "encoder_in_channels": [12, 16, 24],
    "decoder_in_channels": [32, 32, 32],
    "num_denoising": 0,
    "decoder_n_points": 4,
    "anchor_image_size": None,
}
NECK: dict[str, Any] = {
    "neck_hidden_sizes": [8, 12],
    "fusion_hidden_size": 16,
    "reassemble_factors": [2, 1],
    "head_hidden_size": 8,
    "reassemble_hidden_size": 32,
    "patch_size": 7,
}
PIXEL_DECODER: dict[str, Any] = {
    "feature_size": 32,
    "mask_feature_size": 32,
    "hidden_dim": 32,
    "encoder_feedforward_dim": 40,
    "dim_feedforward": 40,
    "encoder_layers": 1,
    "decoder_layers": 3,
    "num_attention_heads": 4,
    "num_queries": 9,
    "num_labels": 10,
    "backbone_config": SWIN
    | {
        "model_type": "swin",
        "depths": [1, 1, 1, 1],
        "num_heads": [2, 2, 4, 4],
        "out_features": ["stage1", "stage2", "stage3", "stage4"],
    },
}


ENTRIES: tuple[Entry, ...] = (
    image("detr", "DetrForObjectDetection", DETECTION, 64, pixel_mask=ones("batch", 64, 64)),
    image(
        "detr-segmentation",
        "DetrForSegmentation",
        DETECTION
        | {
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "backbone_config": RESNET | {"out_features": ["stage1", "stage2", "stage3", "stage4"]},
        },
        64,
    ),
    image("conditional-detr", "ConditionalDetrForObjectDetection", DETECTION, 64),
    image("dab-detr", "DabDetrForObjectDetection", DETECTION | {"hidden_size": 32}, 64),
    image(
        "deformable-detr",
        "DeformableDetrForObjectDetection",
        DETECTION | {"backbone_config": LEVELS, "num_feature_levels": 3, "encoder_n_points": 2, "decoder_n_points": 2},
        64,
    ),
    image("table-transformer", "TableTransformerForObjectDetection", DETECTION, 64),
    image("rt-detr", "RTDetrForObjectDetection", RT_DETR, 64),
    image("rt-detr-v2", "RTDetrV2ForObjectDetection", RT_DETR, 64),
    image("d-fine", "DFineForObjectDetection", RT_DETR | {"backbone_config": LEVELS}, 64),
    image(
        "maskformer",
        "MaskFormerModel",
        {
            "backbone_config": PIXEL_DECODER["backbone_config"],
            "fpn_feature_size": 32,
            "mask_feature_size": 32,
            "decoder_config": DETECTION | {"model_type": "detr"},
            "num_labels": 10,
        },
        64,
    ),
    image("mask2former", "Mask2FormerModel", PIXEL_DECODER, 64),
    image(
        "segformer",
        "SegformerForSemanticSegmentation",
        {
            "hidden_sizes": [8, 16, 20, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 2, 4],
            "decoder_hidden_size": 16,
            "num_labels": 10,
        },
        64,
    ),
    image(
        "upernet",
        "UperNetForSemanticSegmentation",
        {
            "backbone_config": STAGES
            | {"model_type": "convnext", "out_features": ["stage1", "stage2", "stage3", "stage4"]},
            "hidden_size": 16,
            "auxiliary_in_channels": 16,
            "auxiliary_channels": 8,
            "num_labels": 10,
        },
        64,
    ),
    image(
        "dpt",
        "DPTForDepthEstimation",
        TRANSFORMER | NECK | {"backbone_out_indices": [0, 1], "neck_ignore_stages": [], "is_hybrid": False},
    ),
    image(
        "depth-anything",
        "DepthAnythingForDepthEstimation",
        NECK | {"backbone_config": DINOV2 | {"out_features": ["stage1", "stage2"]}},
    ),
    image(
        "glpn",
        "GLPNForDepthEstimation",
        {
            "hidden_sizes": [8, 16, 20, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 2, 4],
            "decoder_hidden_size": 16,
        },
        64,
    ),
    image(
        "zoedepth",
        "ZoeDepthForDepthEstimation",
        {
            "backbone_config": TRANSFORMER
            | {
                "model_type": "beit",
                "num_hidden_layers": 4,
                "reshape_hidden_states": False,
                "out_features": ["stage1", "stage2", "stage3", "stage4"],
            },
            "neck_hidden_sizes": [8, 8, 12, 12],
            "fusion_hidden_size": 16,
            "bottleneck_features": 16,
            "num_attractors": [4, 3, 2, 1],
            "bin_embedding_dim": 8,
            "num_relative_features": 8,
            "bin_configurations": [{"n_bins": 8, "min_depth": 0.001, "max_depth": 10.0}],
        },
    ),
    image(
        "superpoint",
        "SuperPointForKeypointDetection",
        {"encoder_hidden_sizes": [8, 8, 16, 16], "decoder_hidden_size": 16, "descriptor_decoder_dim": 16},
        64,
    ),
    define(
        "vitmatte",
        "vision",
        "VitMatteForImageMatting",
        {
            "backbone_config": TRANSFORMER
            | {
                "model_type": "vitdet",
                "image_size": 64,
                "pretrain_image_size": 64,
                "patch_size": 16,
                "num_channels": 4,
                "out_features": ["stage2"],
            },
            "hidden_size": 32,
            "convstream_hidden_sizes": [8, 12, 16],
            "fusion_hidden_sizes": [16, 12, 8, 8],
        },
        {"pixel_values": normal("batch", 4, 64, 64)},
        SIZES,
    ),
    define(
        "vitpose",
        "vision",
        "VitPoseForPoseEstimation",
        {
            "backbone_config": TRANSFORMER
            | {"model_type": "vitpose_backbone", "image_size": [28, 28], "patch_size": [7, 7], "out_indices": [2]},
            "num_labels": 5,
        },
        {"pixel_values": normal("batch", 3, 28, 28)},
        SIZES,
    ),
    define(
        "seggpt",
        "vision",
        "SegGptForImageSegmentation",
        TRANSFORMER
        | {
            "image_size": [56, 28],
            "pretrain_image_size": 28,
            "merge_index": 0,
            "intermediate_hidden_state_indices": [0, 1],
            "decoder_hidden_size": 8,
        },
        {
            "pixel_values": normal("batch", 3, 28, 28),
            "prompt_pixel_values": normal("batch", 3, 28, 28),
            "prompt_masks": normal("batch", 3, 28, 28),
        },
        SIZES,
    ),
    define(
        "sam",
        "vision",
        "SamModel",
        {
            "vision_config": TRANSFORMER
            | {"window_size": 2, "global_attn_indexes": [1], "output_channels": 32, "mlp_dim": 40, "num_pos_feats": 16},
            "prompt_encoder_config": {"hidden_size": 32, "image_size": 28, "patch_size": 7, "mask_input_channels": 4},
            "mask_decoder_config": {
                "hidden_size": 32,
                "mlp_dim": 40,
                "num_attention_heads": 2,
                "iou_head_hidden_dim": 16,
                "num_hidden_layers": 1,
            },
        },
        {
            "pixel_values": normal("batch", 3, 28, 28),
            "input_points": uniform("batch", 1, 2, 2),
            "input_labels": fixed([0, 1], "batch", 1, 2),
        },
        SIZES,
    ),
    define(
        "sam-vision",
        "vision",
        "SamVisionModel",
        TRANSFORMER | {"window_size": 3, "global_attn_indexes": [1], "output_channels": 16, "mlp_dim": 40},
        {"pixel_values": normal("batch", 3, 28, 28)},
        {"batch": 5},
    ),
)
