"""Images: torchvision, kornia, pytorchcv, spandrel, facenet-pytorch, open_clip."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from tests.support.packages.entry import Input, Model, integers, normal, uniform

_BATCH = {"batch": 2}
_FREE = {"batch": 2, "height": 2, "width": 3}


def torchvision() -> Iterator[Model]:
    from torchvision import models
    from torchvision.models import swin_transformer as swin

    free = (normal("batch", 3, "32*height", "32*width"),)
    for name in ("squeezenet1_1", "shufflenet_v2_x0_5", "googlenet", "mobilenet_v2", "mnasnet0_5", "regnet_y_400mf"):
        options = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
        build = lambda name=name, options=options: models.get_model(  # noqa: E731
            name, weights=None, num_classes=10, **options
        )
        yield Model("torchvision", name, build, free, _FREE)
    for name in ("lraspp_mobilenet_v3_large",):
        build = lambda name=name: models.get_model(  # noqa: E731
            name, weights=None, weights_backbone=None, num_classes=3
        )
        yield Model("torchvision", name, build, free, _FREE)
    video: dict[str, Callable[[], nn.Module]] = {
        "vit": lambda: models.VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=10),
        "swin": lambda: models.SwinTransformer([4, 4], 16, [1, 1], [2, 2], [4, 4], num_classes=10),
        "swin-v2": lambda: models.SwinTransformer(
            [4, 4], 16, [1, 1], [2, 2], [4, 4], num_classes=10, block=swin.SwinTransformerBlockV2,
            downsample_layer=swin.PatchMergingV2,
        ),
        "maxvit": lambda: models.MaxVit((64, 64), 16, 2, [16, 16], [1, 1], 8, 0.0, num_classes=10),
    }  # fmt: skip
    for name, build in video.items():
        side = 64 if name == "maxvit" else 32
        yield Model("torchvision", name, build, (normal("batch", 3, side, side),), _BATCH)


def kornia() -> Iterator[Model]:
    from kornia import color, enhance, feature, filters, geometry, losses, morphology

    image = uniform("batch", 3, "height", "width")
    sizes = {"batch": 2, "height": 9, "width": 12}

    class Function(nn.Module):
        def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
            super().__init__()
            self.function, self.options = function, options

        def forward(self, *args: torch.Tensor) -> Any:
            return self.function(*args, **self.options)

    rows: list[tuple[str, Callable[..., Any], tuple[Input, ...], dict[str, Any]]] = [
        ("rgb_to_lab", color.rgb_to_lab, (image,), {}),
        ("rgb_to_hsv", color.rgb_to_hsv, (image,), {}),
        ("rgb_to_ycbcr", color.rgb_to_ycbcr, (image,), {}),
        ("sobel", filters.sobel, (image,), {}),
        ("canny", filters.canny, (image,), {"hysteresis": False}),
        ("gaussian_blur2d", filters.gaussian_blur2d, (image,), {"kernel_size": (3, 3), "sigma": (1.0, 1.0)}),
        ("median_blur", filters.median_blur, (image,), {"kernel_size": 3}),
        ("bilateral_blur", filters.bilateral_blur, (image,), {"kernel_size": 3, "sigma_color": 0.1,
         "sigma_space": (1.0, 1.0)}),
        ("unsharp_mask", filters.unsharp_mask, (image,), {"kernel_size": (3, 3), "sigma": (1.0, 1.0)}),
        ("laplacian", filters.laplacian, (image,), {"kernel_size": 3}),
        ("adjust_gamma", enhance.adjust_gamma, (image,), {"gamma": 1.5}),
        ("adjust_hue", enhance.adjust_hue, (image,), {"factor": 0.3}),
        ("equalize", enhance.equalize, (image,), {}),
        ("equalize_clahe", enhance.equalize_clahe, (uniform("batch", 3, 32, 32),), {"grid_size": (4, 4)}),
        ("sharpness", enhance.sharpness, (image,), {"factor": 0.5}),
        ("dilation", lambda x: morphology.dilation(x, torch.ones(3, 3)), (image,), {}),
        ("rotate", geometry.rotate, (image, uniform("batch")), {}),
        ("warp_perspective", lambda x, m: geometry.warp_perspective(x, torch.eye(3) + 0.01 * m, (8, 10)),
         (image, normal("batch", 3, 3)), {}),
        ("pyrdown", geometry.pyrdown, (image,), {}),
        ("ssim", losses.ssim_loss, (image, image), {"window_size": 3}),
        ("harris", feature.harris_response, (image,), {}),
        ("quaternion", lambda q: geometry.quaternion_to_rotation_matrix(q), (normal("batch", 4),), {}),
        ("homography", geometry.find_homography_dlt, (normal("batch", 6, 2), normal("batch", 6, 2)), {}),
        ("undistort", lambda p: geometry.undistort_points(p, torch.eye(3)[None], torch.full((1, 4), 0.01)),
         (normal(1, "points", 2),), {}),
        ("connected_components", lambda x: __import__("kornia").contrib.connected_components(x, 5),
         (uniform("batch", 1, "height", "width"),), {}),
    ]  # fmt: skip
    for name, function, inputs, options in rows:
        used = {dim for one in inputs for dim in one.named().values()}
        some = {key: size for key, size in {**sizes, "points": 5}.items() if key in used}
        build = lambda function=function, options=options: Function(function, options)  # noqa: E731
        yield Model("kornia", name, build, inputs, some)
    patches = (uniform("batch", 1, 32, 32),)
    yield Model("kornia", "HardNet", lambda: feature.HardNet(pretrained=False), patches, _BATCH)
    yield Model("kornia", "TFeat", lambda: feature.TFeat(pretrained=False), patches, _BATCH)
    yield Model("kornia", "SOSNet", lambda: feature.SOSNet(pretrained=False), patches, _BATCH)
    yield Model("kornia", "SIFTDescriptor", lambda: feature.SIFTDescriptor(32), (uniform("batch", 1, 32, 32),), _BATCH)


def pytorchcv() -> Iterator[Model]:
    from pytorchcv.model_provider import get_model

    names = """
        preresnet10 seresnet10 bninception condensenet74_c4_g4 squeezeresnet_v1_0 sqnxt23_w1 shufflenet_g1_wd4
        menet108_8x1_g3 igcv3_wd4 espnetv2_wd2 octresnet10_ad2 peleenet hardnet39ds darknet_tiny
    """
    image = (normal("batch", 3, 224, 224),)
    for name in names.split():
        yield Model("pytorchcv", name, lambda name=name: get_model(name, num_classes=10), image, _BATCH)


def spandrel() -> Iterator[Model]:
    from spandrel.architectures.Compact import Compact
    from spandrel.architectures.ESRGAN import ESRGAN
    from spandrel.architectures.NAFNet import NAFNet
    from spandrel.architectures.OmniSR import OmniSR
    from spandrel.architectures.PLKSR import PLKSR
    from spandrel.architectures.RGT import RGT
    from spandrel.architectures.SPAN import SPAN
    from spandrel.architectures.Swin2SR import Swin2SR
    from spandrel.architectures.SwinIR import SwinIR

    image = (uniform("batch", 3, "8*height", "8*width"),)
    rows: list[tuple[str, Callable[[], nn.Module]]] = [
        ("Compact", lambda: Compact(num_feat=8, num_conv=2, upscale=2)),
        ("ESRGAN", lambda: ESRGAN(num_filters=8, num_blocks=1, scale=2)),
        ("NAFNet", lambda: NAFNet(width=8, enc_blk_nums=[1, 1], dec_blk_nums=[1, 1])),
        ("OmniSR", lambda: OmniSR(num_feat=8, res_num=1, window_size=8, up_scale=2)),
        ("PLKSR", lambda: PLKSR(dim=8, n_blocks=1, kernel_size=5, upscaling_factor=2)),
        ("RGT", lambda: RGT(img_size=16, embed_dim=12, depth=[1], num_heads=[2], split_size=[8, 8], upscale=2)),
        ("SPAN", lambda: SPAN(num_in_ch=3, num_out_ch=3, feature_channels=8, upscale=2)),
        ("Swin2SR", lambda: Swin2SR(img_size=16, embed_dim=12, depths=[2], num_heads=[2], window_size=8, upscale=2,
                                    upsampler="pixelshuffledirect")),
        ("SwinIR", lambda: SwinIR(img_size=16, embed_dim=12, depths=[2], num_heads=[2], window_size=8, upscale=2,
                                  upsampler="pixelshuffledirect")),
    ]  # fmt: skip
    for name, build in rows:
        yield Model("spandrel", name, build, image, _FREE)


def facenet() -> Iterator[Model]:
    from facenet_pytorch import InceptionResnetV1
    from facenet_pytorch.models.mtcnn import ONet, PNet, RNet

    yield Model("facenet-pytorch", "PNet", lambda: PNet(pretrained=False),
                (normal("batch", 3, "height", "width"),), {"batch": 2, "height": 20, "width": 24})  # fmt: skip
    yield Model("facenet-pytorch", "RNet", lambda: RNet(pretrained=False), (normal("batch", 3, 24, 24),), _BATCH)
    yield Model("facenet-pytorch", "ONet", lambda: ONet(pretrained=False), (normal("batch", 3, 48, 48),), _BATCH)
    yield Model("facenet-pytorch", "InceptionResnetV1", lambda: InceptionResnetV1(classify=True, num_classes=10),
                (normal("batch", 3, 96, 96),), _BATCH)  # fmt: skip


def open_clip() -> Iterator[Model]:
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg
    from open_clip.transformer import TextTransformer, VisionTransformer

    vision = {"image_size": 32, "patch_size": 8, "width": 32, "layers": 2, "head_width": 16}
    text = {"context_length": 12, "vocab_size": 100, "width": 32, "heads": 2, "layers": 2}
    both = (normal("batch", 3, 32, 32), integers("batch", 12))
    yield Model("open-clip-torch", "CLIP", lambda: CLIP(16, CLIPVisionCfg(**vision), CLIPTextCfg(**text)), both, _BATCH)
    yield Model("open-clip-torch", "image", lambda: VisionTransformer(32, 8, 32, 2, 2, 2.0, output_dim=16),
                (normal("batch", 3, 32, 32),), _BATCH)  # fmt: skip
    yield Model("open-clip-torch", "text", lambda: TextTransformer(12, 100, 32, 2, 2, output_dim=16),
                (integers("batch", 12),), _BATCH)  # fmt: skip
