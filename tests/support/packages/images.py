"""Images: timm, vit-pytorch, efficientnet-pytorch, segmentation-models-pytorch."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from tests.support.packages.entry import Model, Size, normal

# Convolutions, which take images of any size.
_ANY_SIZE = """
    resnet10t resnet18d resnext26ts seresnet18 ecaresnet50t skresnet18 res2net50_26w_4s resnest14d densenet121 dla34
    vgg11_bn mobilenetv1_100 mobilenetv3_small_050 mobilenetv4_conv_small efficientnet_b0 efficientnetv2_rw_t
    mixnet_s lcnet_050 tinynet_e mnasnet_small fbnetc_100 ghostnet_100 ghostnetv2_100 hardcorenas_a
    regnetx_002 regnety_002 regnetz_b16 rexnet_100
    convnext_atto convnextv2_atto convmixer_768_32 repvgg_a0 repghostnet_050 mobileone_s0 hgnet_tiny hgnetv2_b0
    cspresnet50 cs3darknet_s darknet17 gernet_s dpn48b inception_v3 inception_next_atto xception41p nfnet_f0
    nf_resnet26 selecsls42b vovnet39a ese_vovnet19b_dw starnet_s1 fasternet_t0 shvit_s1 rdnet_tiny
    botnet26t_256 halonet26t lambda_resnet26rpt_256 eca_halonext26ts gcresnet33ts
"""

# Transformers and mixers of one image size.
_ONE_SIZE: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"img_size": 64, "depth": 2},
    "vit_relpos_small_patch16_224": {"img_size": 64, "depth": 2},
    "vit_small_patch14_reg4_dinov2": {"img_size": 56, "depth": 2},
    "vit_base_patch16_siglip_224": {"img_size": 64, "depth": 2, "embed_dim": 96, "num_heads": 4},
    "deit_tiny_distilled_patch16_224": {"img_size": 64, "depth": 2},
    "deit3_small_patch16_224": {"img_size": 64, "depth": 2},
    "cait_xxs24_224": {"img_size": 64, "depth": 2},
    "xcit_nano_12_p16_224": {"img_size": 64, "depth": 2},
    "beit_base_patch16_224": {"img_size": 64, "depth": 2, "embed_dim": 96, "num_heads": 4},
    "eva02_tiny_patch14_224": {"img_size": 56, "depth": 2},
    "crossvit_tiny_240": {},
    "pit_ti_224": {},
    "tnt_s_legacy_patch16_224": {"depth": 2},
    "convit_tiny": {"depth": 3, "local_up_to_layer": 2},
    "coat_lite_tiny": {},
    "levit_128s": {},
    "swin_tiny_patch4_window7_224": {"depths": (1, 1, 1, 1), "embed_dim": 48},
    "swinv2_tiny_window8_256": {"depths": (1, 1, 1, 1), "embed_dim": 48},
    "swin_s3_tiny_224": {"depths": (1, 1, 1, 1), "embed_dim": 48},
    "twins_pcpvt_small": {"depths": (1, 1, 1, 1)},
    "twins_svt_small": {"depths": (1, 1, 2, 1)},
    "pvt_v2_b0": {},
    "poolformer_s12": {},
    "caformer_s18": {"depths": (1, 1, 1, 1)},
    "mixer_s32_224": {"num_blocks": 2},
    "gmlp_s16_224": {"num_blocks": 2},
    "resmlp_12_224": {"num_blocks": 2},
    "sequencer2d_s": {"layers": (1, 1, 1, 1)},
    "edgenext_xx_small": {},
    "mobilevit_xxs": {},
    "mobilevitv2_050": {},
    "efficientformer_l1": {},
    "efficientformerv2_s0": {},
    "efficientvit_b0": {},
    "efficientvit_m0": {},
    "fastvit_t8": {},
    "repvit_m0_9": {},
    "maxvit_rmlp_pico_rw_256": {},
    "coatnet_pico_rw_224": {},
    "gcvit_xxtiny": {},
    "davit_tiny": {"depths": (1, 1, 1, 1)},
    "focalnet_tiny_srf": {"depths": (1, 1, 1, 1)},
    "hiera_tiny_224": {},
    "mvitv2_tiny": {},
    "nest_tiny": {},
    "nextvit_small": {"depths": (1, 1, 5, 1)},
    "tiny_vit_5m_224": {},
    "visformer_tiny": {},
    "volo_d1_224": {"layers": (1, 1, 1, 1)},
    "mambaout_femto": {},
    "csatv2": {},
    "naflexvit_base_patch16_gap": {"embed_dim": 96, "depth": 2, "num_heads": 4},
}


def timm() -> Iterator[Model]:
    from timm import create_model, list_models
    from timm.models import get_pretrained_cfg

    def model(name: str, options: dict[str, Any], height: Size, width: Size, sizes: dict[str, int]) -> Model:
        def build() -> nn.Module:
            module: nn.Module = create_model(name, num_classes=10, **options)
            return module

        return Model("timm", name, build, (normal("batch", 3, height, width),), {"batch": 2, **sizes})

    def _side(name: str) -> int:
        found = get_pretrained_cfg(name)
        return int(found.input_size[-1]) if found is not None else 224

    known = set(list_models())
    missing = sorted({*_ANY_SIZE.split(), *_ONE_SIZE} - known)
    assert not missing, missing
    for name in _ANY_SIZE.split():
        yield model(name, {}, "32*height", "32*width", {"height": 3, "width": 2})
    for name, options in _ONE_SIZE.items():
        side = options.get("img_size") or _side(name)
        yield model(name, options, side, side, {})


# Module and class of vit-pytorch, options, and the image's shape without the batch.
_SMALL = {"dim": 32, "depth": 2, "heads": 4, "mlp_dim": 64}
_IMAGE = {"image_size": 32, "patch_size": 8, "num_classes": 10}
_VIT: tuple[tuple[str, str, dict[str, Any], tuple[Size, ...]], ...] = (
    ("vit", "ViT", _IMAGE | _SMALL, (3, 32, 32)),
    ("simple_vit", "SimpleViT", _IMAGE | _SMALL, (3, 32, 32)),
    ("simple_vit_with_register_tokens", "SimpleViT", _IMAGE | _SMALL, (3, 32, 32)),
    ("simple_vit_with_qk_norm", "SimpleViT", _IMAGE | _SMALL, (3, 32, 32)),
    ("simple_vit_with_patch_dropout", "SimpleViT", _IMAGE | _SMALL, (3, 32, 32)),
    ("simple_vit_with_fft", "SimpleViT", _IMAGE | _SMALL | {"freq_patch_size": 8}, (3, 32, 32)),
    ("simple_vit_1d", "SimpleViT", {"seq_len": 64, "patch_size": 8, "num_classes": 10} | _SMALL, (3, 64)),
    ("simple_flash_attn_vit", "SimpleViT", _IMAGE | _SMALL, (3, 32, 32)),
    ("simple_vit_3d", "SimpleViT", _IMAGE | _SMALL | {"image_patch_size": 8, "frames": 4, "frame_patch_size": 2},
     (3, 4, 32, 32)),
    ("vit_3d", "ViT", _IMAGE | _SMALL | {"image_patch_size": 8, "frames": 4, "frame_patch_size": 2}, (3, 4, 32, 32)),
    ("vivit", "ViT", _IMAGE | {"image_patch_size": 8, "frames": 4, "frame_patch_size": 2, "dim": 32,
     "spatial_depth": 1, "temporal_depth": 1, "heads": 4, "mlp_dim": 64}, (3, 4, 32, 32)),
    ("vit_for_small_dataset", "ViT", _IMAGE | _SMALL, (3, 32, 32)),
    ("vit_with_patch_dropout", "ViT", _IMAGE | _SMALL, (3, 32, 32)),
    ("vit_with_patch_merger", "ViT", _IMAGE | _SMALL, (3, 32, 32)),
    ("parallel_vit", "ViT", _IMAGE | _SMALL, (3, 32, 32)),
    ("learnable_memory_vit", "ViT", _IMAGE | _SMALL, (3, 32, 32)),
    ("rvt", "RvT", _IMAGE | _SMALL, (3, 32, 32)),
    ("deepvit", "DeepViT", _IMAGE | _SMALL, (3, 32, 32)),
    ("cait", "CaiT", _IMAGE | _SMALL | {"cls_depth": 1}, (3, 32, 32)),
    ("cross_vit", "CrossViT", {"image_size": 32, "num_classes": 10, "sm_dim": 16, "lg_dim": 32, "sm_patch_size": 4,
     "lg_patch_size": 8, "depth": 1}, (3, 32, 32)),
    ("pit", "PiT", _IMAGE | _SMALL | {"depth": (1, 1)}, (3, 32, 32)),
    ("t2t", "T2TViT", {"image_size": 32, "num_classes": 10, "dim": 32, "depth": 1, "heads": 2, "mlp_dim": 64,
     "t2t_layers": ((3, 2), (3, 2))}, (3, 32, 32)),
    ("cct", "CCT", {"img_size": 32, "embedding_dim": 32, "n_conv_layers": 1, "kernel_size": 3, "stride": 2,
     "padding": 1, "num_layers": 2, "num_heads": 2, "mlp_ratio": 2.0, "num_classes": 10}, (3, 32, 32)),
    ("cvt", "CvT", {"num_classes": 10, "s1_emb_dim": 16, "s2_emb_dim": 32, "s3_emb_dim": 32, "s3_depth": 1},
     (3, "16*side", "16*side")),
    ("twins_svt", "TwinsSVT", {"num_classes": 10, "s1_emb_dim": 16, "s2_emb_dim": 16, "s3_emb_dim": 32,
     "s3_depth": 1, "s4_emb_dim": 32}, (3, 224, 224)),
    ("regionvit", "RegionViT", {"dim": (16, 16, 32, 32), "depth": (1, 1, 1, 1), "num_classes": 10}, (3, 224, 224)),
    ("crossformer", "CrossFormer", {"dim": (16, 16, 32, 32), "depth": (1, 1, 1, 1), "num_classes": 10,
     "global_window_size": (8, 4, 2, 1)}, (3, 224, 224)),
    ("scalable_vit", "ScalableViT", {"num_classes": 10, "dim": 16, "heads": (1, 1, 2, 2), "depth": (1, 1, 1, 1),
     "ssa_dim_key": (16, 16, 16, 16), "reduction_factor": (4, 2, 1, 1), "window_size": (32, 16, None, None)},
     (3, 128, 128)),
    ("sep_vit", "SepViT", {"num_classes": 10, "dim": 16, "depth": (1, 1, 1, 1), "heads": (1, 1, 2, 2)},
     (3, 224, 224)),
    ("max_vit", "MaxViT", {"num_classes": 10, "dim": 32, "depth": (1, 1), "dim_head": 16, "window_size": 4},
     (3, 64, 64)),
    ("nest", "NesT", {"image_size": 32, "patch_size": 4, "dim": 32, "heads": 2, "num_hierarchies": 2,
     "block_repeats": (1, 1), "num_classes": 10}, (3, 32, 32)),
    ("mobile_vit", "MobileViT", {"image_size": (64, 64), "dims": [16, 16, 16], "num_classes": 10,
     "channels": [8, 8, 16, 16, 16, 16, 16, 16, 16, 16, 32]}, (3, 64, 64)),
    ("xcit", "XCiT", _IMAGE | _SMALL | {"cls_depth": 1}, (3, 32, 32)),
    ("ats_vit", "ViT", _IMAGE | _SMALL | {"max_tokens_per_depth": (8, 4)}, (3, 32, 32)),
    ("local_vit", "LocalViT", _IMAGE | _SMALL, (3, 32, 32)),
    ("jumbo_vit", "JumboViT", _IMAGE | _SMALL | {"num_jumbo_cls": 1, "jumbo_cls_k": 2, "jumbo_ff_mult": 2},
     (3, 32, 32)),
    ("look_vit", "LookViT", {"dim": 32, "image_size": 32, "num_classes": 10, "depth": 1, "heads": 2,
     "highres_patch_size": 4, "patch_size": 8}, (3, 32, 32)),
)  # fmt: skip


def vit_pytorch() -> Iterator[Model]:
    for file, cls, options, shape in _VIT:

        def build(file: str = file, cls: str = cls, options: dict[str, Any] = options) -> nn.Module:
            module: nn.Module = getattr(importlib.import_module(f"vit_pytorch.{file}"), cls)(**options)
            return module

        sizes = {"batch": 2} | ({"side": 4} if "16*side" in shape else {})
        yield Model("vit-pytorch", file, build, (normal("batch", *shape),), sizes)


def efficientnet_pytorch() -> Iterator[Model]:
    from efficientnet_pytorch import EfficientNet

    for name, side in (("efficientnet-b0", 64), ("efficientnet-b1", 64)):

        def build(name: str = name, side: int = side) -> nn.Module:
            module: nn.Module = EfficientNet.from_name(name, image_size=side, num_classes=10)
            module.set_swish(memory_efficient=False)
            return module

        yield Model("efficientnet-pytorch", name, build, (normal("batch", 3, side, side),), {"batch": 2})


def segmentation_models_pytorch() -> Iterator[Model]:
    import segmentation_models_pytorch as smp

    for decoder, encoder in (
        ("Unet", "resnet18"),
        ("Unet", "mobilenet_v2"),
        ("UnetPlusPlus", "resnet18"),
        ("MAnet", "resnet18"),
        ("Linknet", "resnet18"),
        ("FPN", "resnet18"),
        ("PSPNet", "resnet18"),
        ("PAN", "resnet18"),
        ("DeepLabV3", "resnet18"),
        ("DeepLabV3Plus", "resnet18"),
        ("UPerNet", "resnet18"),
        ("Segformer", "mit_b0"),
    ):

        def build(decoder: str = decoder, encoder: str = encoder) -> nn.Module:
            module: nn.Module = getattr(smp, decoder)(encoder, encoder_weights=None, classes=2)
            return module

        side: Size = 128
        inputs = (normal("batch", 3, *((side, side) if decoder == "PAN" else ("32*height", "32*width"))),)
        sizes = {"batch": 2} if decoder == "PAN" else {"batch": 2, "height": 3, "width": 2}
        yield Model("segmentation-models-pytorch", f"{decoder}-{encoder}", build, inputs, sizes)
