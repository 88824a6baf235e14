"""Vision: classification of images and video, reconstruction. Only the batch may change."""

from __future__ import annotations

from typing import Any

from tests.support.zoo.entry import Draw, Entry, define, integers, normal, uniform, zeros

SIZES = {"batch": 5}
TRANSFORMER: dict[str, Any] = {
    "image_size": 28,
    "patch_size": 7,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 72,
    "num_labels": 10,
}
SWIN: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [1, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    "num_labels": 10,
}
STAGES: dict[str, Any] = {"hidden_sizes": [8, 12, 16, 24], "depths": [1, 1, 2, 1], "num_labels": 10}


def image(name: str, model: str, settings: dict[str, Any], side: int = 28, **extra: Draw) -> Entry:
    """A model over square images."""
    return define(name, "vision", model, settings, {"pixel_values": normal("batch", 3, side, side)} | extra, SIZES)


def transformer(name: str, model: str, **settings: Any) -> Entry:
    """A vision transformer that takes the settings of most of them."""
    return image(name, model, TRANSFORMER | settings)


def video(name: str, model: str, **settings: Any) -> Entry:
    """A vision transformer over four frames."""
    shared = TRANSFORMER | {"num_frames": 4, "tubelet_size": 2}
    return define(name, "vision", model, shared | settings, {"pixel_values": normal("batch", 4, 3, 28, 28)}, SIZES)


ENTRIES: tuple[Entry, ...] = (
    transformer("aimv2", "Aimv2VisionModel"),
    transformer("beit", "BeitForImageClassification", use_relative_position_bias=True, out_indices=[0, 1]),
    transformer(
        "data2vec-vision",
        "Data2VecVisionForImageClassification",
        use_shared_relative_position_bias=True,
        out_indices=[0, 1],
    ),
    transformer("deit", "DeiTForImageClassificationWithTeacher"),
    transformer("dinov2", "Dinov2ForImageClassification", use_swiglu_ffn=True),
    transformer("dinov2-registers", "Dinov2WithRegistersForImageClassification"),
    transformer("dinov3-vit", "DINOv3ViTModel", num_register_tokens=2),
    transformer("ijepa", "IJepaForImageClassification"),
    transformer(
        "mgp-str",
        "MgpstrForSceneTextRecognition",
        image_size=[28, 28],
        num_bpe_labels=99,
        num_wordpiece_labels=98,
        max_token_length=9,
    ),
    transformer("mlcd", "MLCDVisionModel"),
    transformer("vit", "ViTForImageClassification"),
    define(
        "vit-interpolated",
        "vision",
        "ViTModel",
        TRANSFORMER,
        {"pixel_values": normal("batch", 3, 42, 35)},
        SIZES,
        {"interpolate_pos_encoding": True},
    ),
    transformer("vit-msn", "ViTMSNForImageClassification"),
    transformer(
        "vitdet",
        "VitDetModel",
        window_size=2,
        window_block_indices=[0],
        residual_block_indices=[1],
        use_relative_position_embeddings=True,
        pretrain_image_size=28,
    ),
    transformer("yolos", "YolosForObjectDetection", image_size=[28, 28], num_detection_tokens=9),
    image("bit", "BitForImageClassification", STAGES | {"embedding_size": 8, "num_groups": 4}, 64),
    image("convnext", "ConvNextForImageClassification", STAGES, 64),
    image("convnextv2", "ConvNextV2ForImageClassification", STAGES, 64),
    image(
        "cvt", "CvtForImageClassification", {"embed_dim": [8, 16, 32], "num_heads": [1, 2, 4], "depth": [1, 2, 3]}, 64
    ),
    image("dinov3-convnext", "DINOv3ConvNextModel", STAGES, 64),
    image(
        "efficientnet",
        "EfficientNetForImageClassification",
        {
            "width_coefficient": 0.5,
            "depth_coefficient": 0.5,
            "hidden_dim": 640,
            "in_channels": [32, 16, 24],
            "out_channels": [16, 24, 40],
            "kernel_sizes": [3, 3, 5],
            "strides": [1, 2, 2],
            "num_block_repeats": [1, 1, 2],
            "expand_ratios": [1, 6, 6],
        },
        32,
    ),
    image(
        "focalnet",
        "FocalNetForImageClassification",
        {
            "image_size": 32,
            "embed_dim": 16,
            "depths": [1, 1],
            "hidden_sizes": [32, 32],
            "focal_levels": [2, 2],
            "focal_windows": [3, 3],
            "use_layerscale": True,
        },
        32,
    ),
    image(
        "hgnet-v2",
        "HGNetV2ForImageClassification",
        {
            "stem_channels": [3, 8, 8],
            "stage_in_channels": [8, 16, 16, 16],
            "stage_mid_channels": [8, 8, 8, 8],
            "stage_out_channels": [16, 16, 16, 16],
            "stage_numb_of_layers": [2, 2, 2, 2],
            "stage_num_blocks": [1, 1, 1, 1],
            "hidden_sizes": [16, 16, 16, 16],
        },
        64,
    ),
    image(
        "hiera",
        "HieraForImageClassification",
        {
            "image_size": [64, 64],
            "embed_dim": 8,
            "depths": [1, 1, 2, 1],
            "num_heads": [1, 1, 2, 2],
            "masked_unit_size": [8, 8],
        },
        64,
    ),
    image(
        "levit",
        "LevitForImageClassification",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 3, 4],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
        },
        64,
    ),
    image("mobilenet-v1", "MobileNetV1ForImageClassification", {"depth_multiplier": 0.25}, 64),
    image("mobilenet-v2", "MobileNetV2ForImageClassification", {"depth_multiplier": 0.35}, 32),
    image(
        "mobilevit",
        "MobileViTForImageClassification",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 32],
            "num_attention_heads": 4,
        },
        64,
    ),
    image("mobilevitv2", "MobileViTV2ForImageClassification", {"image_size": 64, "width_multiplier": 0.25}, 64),
    image("poolformer", "PoolFormerForImageClassification", STAGES, 64),
    image(
        "pvt",
        "PvtForImageClassification",
        {
            "image_size": 64,
            "hidden_sizes": [8, 16, 20, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 2, 4],
            "mlp_ratios": [2, 2, 2, 2],
        },
        64,
    ),
    image(
        "pvt-v2",
        "PvtV2ForImageClassification",
        {
            "image_size": 64,
            "hidden_sizes": [8, 16, 20, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 2, 4],
            "mlp_ratios": [2, 2, 2, 2],
        },
        64,
    ),
    image("regnet", "RegNetForImageClassification", STAGES | {"embedding_size": 8, "groups_width": 4}, 64),
    image("resnet", "ResNetForImageClassification", STAGES | {"embedding_size": 8}, 64),
    image(
        "swiftformer",
        "SwiftFormerForImageClassification",
        {"image_size": 64, "embed_dims": [8, 12, 16, 24], "depths": [1, 1, 1, 1]},
        64,
    ),
    image("swin", "SwinForImageClassification", SWIN, 32),
    image("swinv2", "Swinv2ForImageClassification", SWIN, 32),
    image(
        "swin2sr",
        "Swin2SRForImageSuperResolution",
        {"image_size": 16, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4},
        16,
    ),
    image(
        "textnet",
        "TextNetForImageClassification",
        {"stem_out_channels": 8, "hidden_sizes": [8, 8, 16, 16, 24], "image_size": [64, 64]},
        64,
    ),
    define(
        "imagegpt",
        "vision",
        "ImageGPTForImageClassification",
        {"vocab_size": 101, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4},
        {"input_ids": integers("batch", "seq")},
        SIZES | {"seq": 17},
        {"use_cache": False},
    ),
    define(
        "vit-mae",
        "vision",
        "ViTMAEForPreTraining",
        TRANSFORMER
        | {
            "decoder_hidden_size": 16,
            "decoder_num_attention_heads": 2,
            "decoder_num_hidden_layers": 1,
            "decoder_intermediate_size": 40,
        },
        {"pixel_values": normal("batch", 3, 28, 28), "noise": uniform("batch", 16)},
        SIZES,
    ),
    define(
        "vit-masked",
        "vision",
        "ViTForMaskedImageModeling",
        TRANSFORMER | {"encoder_stride": 7},
        {"pixel_values": normal("batch", 3, 28, 28), "bool_masked_pos": zeros("batch", 16)},
        SIZES,
    ),
    video("timesformer", "TimesformerForVideoClassification"),
    video("videomae", "VideoMAEForVideoClassification"),
    video("vivit", "VivitForVideoClassification", tubelet_size=[2, 7, 7]),
    define(
        "vjepa2",
        "vision",
        "VJEPA2ForVideoClassification",
        TRANSFORMER
        | {
            "crop_size": 28,
            "frames_per_clip": 4,
            "num_pooler_layers": 1,
            "pred_hidden_size": 32,
            "pred_num_attention_heads": 4,
            "pred_num_hidden_layers": 1,
        },
        {"pixel_values_videos": normal("batch", 4, 3, 28, 28)},
        SIZES,
    ),
)
