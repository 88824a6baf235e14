"""Diffusion, flows and medical images: diffusers, denoising-diffusion-pytorch, zuko, nflows, MONAI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from tests.support.packages.entry import Input, Model, integers, normal

_BATCH = {"batch": 2}


def diffusers() -> Iterator[Model]:
    import diffusers as df

    image, time = normal("batch", 4, 16, 16), integers("batch", high=1000)
    text = normal("batch", "length", 32)
    both = {"batch": 2, "length": 7}
    plain: dict[str, Any] = {"sample_size": 16, "in_channels": 4, "out_channels": 4, "layers_per_block": 1,
                             "block_out_channels": (32, 64), "norm_num_groups": 8}  # fmt: skip
    cross = plain | {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        "cross_attention_dim": 32,
        "attention_head_dim": 8,
    }
    auto: dict[str, Any] = {"down_block_types": ("DownEncoderBlock2D",) * 2,
                            "up_block_types": ("UpDecoderBlock2D",) * 2, "block_out_channels": (16, 32),
                            "norm_num_groups": 8}  # fmt: skip
    dit: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1}
    rows: list[tuple[str, Callable[[], nn.Module], tuple[Input, ...], dict[str, int], dict[str, Any]]] = [
        ("UNet2DModel", lambda: df.UNet2DModel(**plain, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
         up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8), (image, time), _BATCH, {}),
        ("UNet2DConditionModel", lambda: df.UNet2DConditionModel(**cross), (image, time, text), both, {}),
        ("UNet3DConditionModel", lambda: df.UNet3DConditionModel(sample_size=8, in_channels=4, out_channels=4,
         layers_per_block=1, block_out_channels=(32, 64), norm_num_groups=8, cross_attention_dim=32,
         attention_head_dim=8, down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
         up_block_types=("UpBlock3D", "CrossAttnUpBlock3D")), (normal("batch", 4, 3, 8, 8), time, text), both, {}),
        ("ControlNetModel", lambda: df.ControlNetModel(in_channels=4, layers_per_block=1, block_out_channels=(32, 64),
         norm_num_groups=8, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), cross_attention_dim=32,
         attention_head_dim=8, conditioning_embedding_out_channels=(8, 16)), (image, time, text,
         normal("batch", 3, 32, 32)), both, {}),
        ("AutoencoderKL", lambda: df.AutoencoderKL(latent_channels=4, layers_per_block=1, **auto),
         (normal("batch", 3, 16, 16),), _BATCH, {}),
        ("AutoencoderTiny", lambda: df.AutoencoderTiny(encoder_block_out_channels=(16, 16),
         decoder_block_out_channels=(16, 16), num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1)),
         (normal("batch", 3, "16*height", "16*width"),), {"batch": 2, "height": 1, "width": 2}, {}),
        ("VQModel", lambda: df.VQModel(latent_channels=3, num_vq_embeddings=16, layers_per_block=1, **auto),
         (normal("batch", 3, 16, 16),), _BATCH, {}),
        ("AsymmetricAutoencoderKL", lambda: df.AsymmetricAutoencoderKL(down_block_types=("DownEncoderBlock2D",) * 2,
         down_block_out_channels=(16, 32), layers_per_down_block=1, up_block_types=("UpDecoderBlock2D",) * 2,
         up_block_out_channels=(16, 32), layers_per_up_block=1, latent_channels=4, norm_num_groups=8),
         (normal("batch", 3, 16, 16),), _BATCH, {}),
        ("Transformer2DModel", lambda: df.Transformer2DModel(**dit, in_channels=32, norm_num_groups=8,
         cross_attention_dim=32), (normal("batch", 32, 8, 8), text), both, {}),
        ("DiTTransformer2DModel", lambda: df.DiTTransformer2DModel(**dit, in_channels=4, out_channels=4, sample_size=8,
         norm_num_groups=8, patch_size=2), (normal("batch", 4, 8, 8), time, integers("batch", high=10)), _BATCH, {}),
        ("PixArtTransformer2DModel", lambda: df.PixArtTransformer2DModel(**dit, in_channels=4, sample_size=8,
         cross_attention_dim=32, caption_channels=32, patch_size=2, norm_num_groups=8, use_additional_conditions=False),
         (normal("batch", 4, 8, 8), text, time), both, {}),
        ("SD3Transformer2DModel", lambda: df.SD3Transformer2DModel(**dit, sample_size=8, patch_size=2, in_channels=4,
         out_channels=4, joint_attention_dim=32, caption_projection_dim=32, pooled_projection_dim=16,
         pos_embed_max_size=8), (normal("batch", 4, 8, 8), text, normal("batch", 16), time), both, {}),
        ("AuraFlowTransformer2DModel", lambda: df.AuraFlowTransformer2DModel(sample_size=8, patch_size=2, in_channels=4,
         out_channels=4, num_mmdit_layers=1, num_single_dit_layers=1, attention_head_dim=8, num_attention_heads=4,
         caption_projection_dim=32, joint_attention_dim=32, pos_embed_max_size=64), (normal("batch", 4, 8, 8), text,
         normal("batch")), both, {}),
        ("LatteTransformer3DModel", lambda: df.LatteTransformer3DModel(**dit, in_channels=4, out_channels=4,
         sample_size=8, patch_size=2, cross_attention_dim=32, caption_channels=32, video_length=2),
         (normal("batch", 4, 2, 8, 8), time, text), both, {}),
        ("CogVideoXTransformer3DModel", lambda: df.CogVideoXTransformer3DModel(**dit, in_channels=4, out_channels=4,
         time_embed_dim=8, text_embed_dim=32, sample_width=8, sample_height=8, sample_frames=9, patch_size=2,
         temporal_compression_ratio=4, max_text_seq_length=8), (normal("batch", 3, 4, 8, 8), normal("batch", 8, 32),
         time), _BATCH, {}),
        ("FluxTransformer2DModel", lambda: df.FluxTransformer2DModel(patch_size=1, in_channels=4, num_layers=1,
         num_single_layers=1, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32,
         pooled_projection_dim=32, axes_dims_rope=(4, 4, 8)), (normal("batch", 16, 4), text, normal("batch", 32),
         normal("batch"), normal(16, 3), normal("length", 3)), both, {}),
        ("PriorTransformer", lambda: df.PriorTransformer(num_attention_heads=2, attention_head_dim=16, num_layers=1,
         embedding_dim=16, num_embeddings=4, additional_embeddings=4), (normal("batch", 16), time, normal("batch", 16),
         normal("batch", 4, 16)), _BATCH, {}),
    ]  # fmt: skip
    for name, build, inputs, sizes, options in rows:
        yield Model("diffusers", name, build, inputs, sizes, {**options, "return_dict": False})


def denoising_diffusion() -> Iterator[Model]:
    import denoising_diffusion_pytorch as dd

    inputs = (normal("batch", 3, 32, 32), integers("batch", high=100))
    yield Model("denoising-diffusion-pytorch", "Unet", lambda: dd.Unet(dim=16, dim_mults=(1, 2), flash_attn=False),
                inputs, _BATCH)  # fmt: skip
    yield Model("denoising-diffusion-pytorch", "Unet1D", lambda: dd.Unet1D(dim=16, dim_mults=(1, 2), channels=4),
                (normal("batch", 4, 32), integers("batch", high=100)), _BATCH)  # fmt: skip


def zuko() -> Iterator[Model]:
    import zuko

    class Density(nn.Module):
        def __init__(self, flow: nn.Module) -> None:
            super().__init__()
            self.flow = flow

        def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.flow(c).log_prob(x)
            return result

    flows: dict[str, Callable[[], nn.Module]] = {
        "NICE": lambda: zuko.flows.NICE(3, 4, transforms=2, hidden_features=(16,)),
        "MAF": lambda: zuko.flows.MAF(3, 4, transforms=2, hidden_features=(16,)),
        "NSF": lambda: zuko.flows.NSF(3, 4, transforms=2, hidden_features=(16,)),
        "SOSPF": lambda: zuko.flows.SOSPF(3, 4, transforms=1, hidden_features=(16,)),
        "GMM": lambda: zuko.flows.GMM(3, 4, components=2),
        "NAF": lambda: zuko.flows.NAF(3, 4, transforms=1, hidden_features=(16,)),
        "BPF": lambda: zuko.flows.BPF(3, 4, transforms=1, hidden_features=(16,)),
    }
    for name, flow in flows.items():
        build = lambda flow=flow: Density(flow())  # noqa: E731
        yield Model("zuko", name, build, (normal("batch", 3), normal("batch", 4)), _BATCH)


def nflows() -> Iterator[Model]:
    from nflows import transforms as tf

    class Forward(nn.Module):
        def __init__(self, transform: nn.Module) -> None:
            super().__init__()
            self.transform = transform

        def forward(self, x: torch.Tensor) -> Any:
            return self.transform(x)

    transforms: dict[str, Callable[[], nn.Module]] = {
        "autoregressive": lambda: tf.MaskedAffineAutoregressiveTransform(4, 8, num_blocks=1),
        "spline": lambda: tf.MaskedPiecewiseRationalQuadraticAutoregressiveTransform(4, 8, num_blocks=1, tails="linear",
                                                                                    tail_bound=3.0),
        "lu": lambda: tf.LULinear(4),
        "svd": lambda: tf.SVDLinear(4, num_householder=2),
        "permuted": lambda: tf.CompositeTransform([tf.ReversePermutation(4), tf.ActNorm(4)]),
    }  # fmt: skip
    for name, transform in transforms.items():
        build = lambda transform=transform: Forward(transform())  # noqa: E731
        yield Model("nflows", name, build, (normal("batch", 4),), _BATCH)


def monai() -> Iterator[Model]:
    from monai.networks import nets

    two, three = normal("batch", 1, "16*height", "16*width"), normal("batch", 1, 32, 32, 32)
    free = {"batch": 2, "height": 2, "width": 3}
    rows: list[tuple[str, Callable[[], nn.Module], tuple[Input, ...], dict[str, int]]] = [
        ("UNet", lambda: nets.UNet(2, 1, 2, (8, 16, 32), (2, 2), num_res_units=1), (two,), free),
        ("UNet-3d", lambda: nets.UNet(3, 1, 2, (8, 16), (2,)), (three,), _BATCH),
        ("BasicUNet", lambda: nets.BasicUNet(2, 1, 2, features=(8, 8, 16, 16, 32, 8)), (two,), free),
        ("BasicUNetPlusPlus", lambda: nets.BasicUNetPlusPlus(2, 1, 2, features=(8, 8, 8, 16, 16, 8)), (two,), free),
        ("AttentionUnet", lambda: nets.AttentionUnet(2, 1, 2, (8, 16, 32), (2, 2)), (two,), free),
        ("DynUNet", lambda: nets.DynUNet(2, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[8, 16, 16]), (two,), free),
        ("SegResNet", lambda: nets.SegResNet(2, init_filters=8, in_channels=1, out_channels=2), (two,), free),
        ("SegResNetDS", lambda: nets.SegResNetDS(2, init_filters=8, in_channels=1, out_channels=2), (two,), free),
        ("VNet", lambda: nets.VNet(2, 1, 2), (two,), free),
        ("HighResNet", lambda: nets.HighResNet(2, 1, 2), (two,), free),
        ("FlexibleUNet", lambda: nets.FlexibleUNet(1, 2, "resnet10", spatial_dims=2,
         decoder_channels=(32, 16, 8, 8, 8)),
         (normal("batch", 1, 64, 64),), _BATCH),
        ("UNETR", lambda: nets.UNETR(1, 2, (32, 32), feature_size=8, hidden_size=32, mlp_dim=64, num_heads=2,
         spatial_dims=2), (normal("batch", 1, 32, 32),), _BATCH),
        ("SwinUNETR", lambda: nets.SwinUNETR(1, 2, feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 2, 2, 2),
         spatial_dims=2), (normal("batch", 1, 64, 64),), _BATCH),
        ("ViT", lambda: nets.ViT(1, (32, 32), (8, 8), 32, 64, 2, 2, classification=True, spatial_dims=2),
         (normal("batch", 1, 32, 32),), _BATCH),
        ("ViTAutoEnc", lambda: nets.ViTAutoEnc(1, (32, 32), (4, 4), hidden_size=32, mlp_dim=64, num_layers=2,
         num_heads=2, spatial_dims=2), (normal("batch", 1, 32, 32),), _BATCH),
        ("DenseNet121", lambda: nets.DenseNet(2, 1, 3, init_features=8, growth_rate=4, block_config=(2, 2)), (two,),
         free),
        ("SEResNet50", lambda: nets.SENet(2, 1, "se_resnet_bottleneck", (1, 1, 1, 1), 1, 16, num_classes=3), (two,),
         free),
        ("ResNet-3d", lambda: nets.ResNet("basic", [1, 1, 1, 1], [8, 8, 16, 16], n_input_channels=1, num_classes=3),
         (three,), _BATCH),
        ("EfficientNetBN", lambda: nets.EfficientNetBN("efficientnet-b0", pretrained=False, spatial_dims=2,
         in_channels=1, num_classes=3), (normal("batch", 1, 64, 64),), _BATCH),
        ("AutoEncoder", lambda: nets.AutoEncoder(2, 1, 1, (4, 8), (2, 2)), (two,), free),
        ("VarAutoEncoder", lambda: nets.VarAutoEncoder(2, (1, 32, 32), 1, 8, (4, 8), (2, 2)),
         (normal("batch", 1, 32, 32),), _BATCH),
        ("Regressor", lambda: nets.Regressor((1, 32, 32), (2,), (4, 8), (2, 2)), (normal("batch", 1, 32, 32),), _BATCH),
        ("FullyConnectedNet", lambda: nets.FullyConnectedNet(6, 3, (8, 8)), (normal("batch", 6),), _BATCH),
        ("Quicknat", lambda: nets.Quicknat(num_classes=2, num_channels=1, num_filters=8),
         (normal("batch", 1, 64, 64),), _BATCH),
        ("MedNeXt", lambda: nets.MedNeXt(2, init_filters=8, in_channels=1, out_channels=2,
         blocks_down=(1, 1), blocks_bottleneck=1, blocks_up=(1, 1), encoder_expansion_ratio=(2, 2),
         decoder_expansion_ratio=(2, 2), bottleneck_expansion_ratio=2), (two,), free),
    ]  # fmt: skip
    for name, build, inputs, sizes in rows:
        yield Model("monai", name, build, inputs, sizes)
