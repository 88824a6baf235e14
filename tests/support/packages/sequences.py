"""Text and other sequences: x-transformers and small packages with one architecture each."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from tests.support.packages.entry import Input, Model, integers, normal, trues

_TEXT = {"batch": 2, "length": 6}
_MORE = {"length": 64}  # the longest text that a model has positions for


def x_transformers() -> Iterator[Model]:
    import x_transformers as xt

    variants: dict[str, dict[str, Any]] = {
        "plain": {},
        "rotary": {"rotary_pos_emb": True},
        "alibi": {"alibi_pos_bias": True, "alibi_num_heads": 2},
        "relative": {"rel_pos_bias": True},
        "dynamic-positions": {"dynamic_pos_bias": True, "dynamic_pos_bias_log_distance": False},
        "rms-glu": {"use_rmsnorm": True, "ff_glu": True, "ff_swish": True, "ff_no_bias": True},
        "grouped-heads": {"attn_kv_heads": 2},
        "one-kv-head": {"attn_one_kv_head": True},
        "talking-heads": {"attn_pre_talking_heads": True},
        "sparse-topk": {"attn_sparse_topk": 3},
        "memory-kv": {"attn_num_mem_kv": 3},
        "flash": {"attn_flash": True},
        "macaron": {"macaron": True},
        "sandwich": {"sandwich_norm": True},
        "residual-attention": {"residual_attn": True},
        "shifted": {"shift_tokens": 1},
        "gated-values": {"attn_gate_values": True},
        "qk-norm": {"attn_qk_norm": True, "attn_qk_norm_scale": 10},
        "deep-norm": {"scale_residual": True},
    }
    for name, options in variants.items():

        def decoder(options: dict[str, Any] = options) -> nn.Module:
            layers = xt.Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **options)
            module: nn.Module = xt.TransformerWrapper(num_tokens=100, max_seq_len=64, attn_layers=layers)
            return module

        yield Model("x-transformers", f"decoder-{name}", decoder, (integers("batch", "length"),), _TEXT, limits=_MORE)

    def encoder() -> nn.Module:
        layers = xt.Encoder(dim=32, depth=2, heads=4, attn_dim_head=8)
        module: nn.Module = xt.TransformerWrapper(num_tokens=100, max_seq_len=64, attn_layers=layers)
        return module

    def image() -> nn.Module:
        layers = xt.Encoder(dim=32, depth=2, heads=4, attn_dim_head=8)
        module: nn.Module = xt.ViTransformerWrapper(image_size=32, patch_size=8, num_classes=10, attn_layers=layers)
        return module

    def continuous() -> nn.Module:
        layers = xt.Decoder(dim=32, depth=2, heads=4, attn_dim_head=8)
        return xt.ContinuousTransformerWrapper(dim_in=8, dim_out=4, max_seq_len=64, attn_layers=layers)

    yield Model("x-transformers", "encoder", encoder, (integers("batch", "length"),), _TEXT, limits=_MORE)
    yield Model("x-transformers", "image", image, (normal("batch", 3, 32, 32),), {"batch": 2})
    yield Model("x-transformers", "continuous", continuous, (normal("batch", "length", 8),), _TEXT, limits=_MORE)

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = encoder()

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.model(x, mask=mask)
            return result

    masked = (integers("batch", "length"), trues("batch", "length"))
    yield Model("x-transformers", "encoder-masked", Masked, masked, _TEXT, limits=_MORE)


_IDS = (integers("batch", "length"),)
_FIXED_IDS = (integers("batch", 64),)
_VALUES = (normal("batch", "length", 32),)
_BATCH = {"batch": 2}
_HEADS = {"dim": 32, "depth": 2, "heads": 4}

# Distribution, module, class, options, inputs, sizes.
_SMALL: tuple[tuple[str, str, str, dict[str, Any], tuple[Input, ...], Mapping[str, int]], ...] = (
    ("linformer", "linformer", "LinformerLM", {"num_tokens": 100, "seq_len": 64, "k": 8} | _HEADS, _FIXED_IDS, _BATCH),
    ("linformer", "linformer", "Linformer", {"seq_len": 64, "k": 8} | _HEADS, (normal("batch", 64, 32),), _BATCH),
    ("performer-pytorch", "performer_pytorch", "PerformerLM",
     {"num_tokens": 100, "max_seq_len": 64, "dim_head": 8} | _HEADS, _IDS, _TEXT),
    ("performer-pytorch", "performer_pytorch", "Performer", {"dim_head": 8} | _HEADS, _VALUES, _TEXT),
    ("reformer-pytorch", "reformer_pytorch", "ReformerLM", {"num_tokens": 100, "max_seq_len": 64, "bucket_size": 8,
     "n_hashes": 2} | _HEADS, _FIXED_IDS, _BATCH),
    ("local-attention", "local_attention", "LocalTransformer", {"num_tokens": 100, "max_seq_len": 64,
     "local_attn_window_size": 8, "dim_head": 8} | _HEADS, _FIXED_IDS, _BATCH),
    ("perceiver-pytorch", "perceiver_pytorch", "Perceiver", {"input_channels": 3, "input_axis": 2, "num_freq_bands": 4,
     "max_freq": 10.0, "depth": 2, "num_latents": 8, "latent_dim": 16, "num_classes": 10, "latent_heads": 2,
     "cross_dim_head": 8, "latent_dim_head": 8}, (normal("batch", "side", "side", 3),), {"batch": 2, "side": 6}),
    ("perceiver-pytorch", "perceiver_pytorch", "PerceiverIO", {"dim": 16, "queries_dim": 8, "logits_dim": 10,
     "depth": 2, "num_latents": 8, "latent_dim": 16, "latent_heads": 2, "cross_dim_head": 8, "latent_dim_head": 8},
     (normal("batch", "length", 16),), _TEXT),
    ("linear-attention-transformer", "linear_attention_transformer", "LinearAttentionTransformerLM",
     {"num_tokens": 100, "max_seq_len": 64} | _HEADS, _FIXED_IDS, _BATCH),
    ("sinkhorn-transformer", "sinkhorn_transformer", "SinkhornTransformerLM", {"num_tokens": 100, "max_seq_len": 64,
     "bucket_size": 8} | _HEADS, _FIXED_IDS, _BATCH),
    ("nystrom-attention", "nystrom_attention", "NystromAttention", {"dim": 32, "dim_head": 8, "heads": 4,
     "num_landmarks": 4}, _VALUES, _TEXT),
    ("memory-efficient-attention-pytorch", "memory_efficient_attention_pytorch", "Attention",
     {"dim": 32, "dim_head": 8, "heads": 4, "memory_efficient": True, "q_bucket_size": 4, "k_bucket_size": 8},
     (normal("batch", 16, 32),), _BATCH),
    ("mega-pytorch", "mega_pytorch", "Mega", {"num_tokens": 100, "dim": 32, "depth": 2, "ema_heads": 4,
     "attn_dim_qk": 16, "attn_dim_value": 32, "laplacian_attn_fn": True}, _IDS, _TEXT),
    ("hourglass-transformer-pytorch", "hourglass_transformer_pytorch", "HourglassTransformerLM", {"num_tokens": 100,
     "dim": 32, "max_seq_len": 64, "shorten_factor": 2, "depth": (1, 1, 1)}, _IDS, _TEXT),
    ("g-mlp-pytorch", "g_mlp_pytorch", "gMLP", {"num_tokens": 100, "dim": 32, "depth": 2, "seq_len": 64}, _FIXED_IDS,
     _BATCH),
    ("charformer-pytorch", "charformer_pytorch", "GBST", {"num_tokens": 100, "dim": 32, "max_block_size": 4,
     "downsample_factor": 4, "score_consensus_attn": True}, _IDS, _TEXT),
    ("conformer", "conformer", "ConformerBlock", {"dim": 32, "dim_head": 8, "heads": 4, "conv_kernel_size": 5}, _VALUES,
     _TEXT),
    ("soft-moe-pytorch", "soft_moe_pytorch", "SoftMoE", {"dim": 32, "seq_len": 16, "num_experts": 4}, _VALUES, _TEXT),
    ("axial-attention", "axial_attention", "AxialAttention", {"dim": 8, "dim_index": 1, "heads": 2,
     "num_dimensions": 2}, (normal("batch", 8, "height", "width"),), {"batch": 2, "height": 4, "width": 5}),
    ("isab-pytorch", "isab_pytorch", "ISAB", {"dim": 32, "heads": 4, "num_latents": 8}, _VALUES, _TEXT),
    ("mlp-mixer-pytorch", "mlp_mixer_pytorch", "MLPMixer", {"image_size": 32, "channels": 3, "patch_size": 8, "dim": 32,
     "depth": 2, "num_classes": 10}, (normal("batch", 3, 32, 32),), _BATCH),
    ("lambda-networks", "lambda_networks", "LambdaLayer", {"dim": 16, "dim_out": 16, "r": 7, "dim_k": 8, "heads": 2,
     "dim_u": 2}, (normal("batch", 16, "height", "width"),), {"batch": 2, "height": 8, "width": 9}),
    ("bottleneck-transformer-pytorch", "bottleneck_transformer_pytorch", "BottleStack", {"dim": 16, "fmap_size": 16,
     "dim_out": 32, "proj_factor": 4, "downsample": True, "heads": 2, "dim_head": 8},
     (normal("batch", 16, 16, 16),), _BATCH),
    ("halonet-pytorch", "halonet_pytorch", "HaloAttention", {"dim": 16, "block_size": 4, "halo_size": 2, "dim_head": 8,
     "heads": 2}, (normal("batch", 16, "4*height", "4*width"),), {"batch": 2, "height": 2, "width": 3}),
    ("siren-pytorch", "siren_pytorch", "SirenNet", {"dim_in": 2, "dim_hidden": 16, "dim_out": 3, "num_layers": 3},
     (normal("points", 2),), {"points": 7}),
    ("vector-quantize-pytorch", "vector_quantize_pytorch", "VectorQuantize", {"dim": 32, "codebook_size": 16}, _VALUES,
     _TEXT),
    ("vector-quantize-pytorch", "vector_quantize_pytorch", "ResidualVQ", {"dim": 32, "codebook_size": 16,
     "num_quantizers": 3}, _VALUES, _TEXT),
    ("vector-quantize-pytorch", "vector_quantize_pytorch", "FSQ", {"levels": [4, 3, 3], "dim": 32}, _VALUES, _TEXT),
    ("vector-quantize-pytorch", "vector_quantize_pytorch", "LFQ", {"dim": 32, "codebook_size": 16}, _VALUES, _TEXT),
    ("egnn-pytorch", "egnn_pytorch", "EGNN", {"dim": 16}, (normal("batch", "nodes", 16), normal("batch", "nodes", 3)),
     {"batch": 2, "nodes": 6}),
    ("egnn-pytorch", "egnn_pytorch", "EGNN_Network", {"num_tokens": 20, "dim": 16, "depth": 2,
     "num_nearest_neighbors": 3}, (integers("batch", "nodes", high=20), normal("batch", "nodes", 3)),
     {"batch": 2, "nodes": 6}),
    ("point-transformer-pytorch", "point_transformer_pytorch", "PointTransformerLayer", {"dim": 16,
     "pos_mlp_hidden_dim": 8, "attn_mlp_hidden_mult": 2}, (normal("batch", "nodes", 16), normal("batch", "nodes", 3)),
     {"batch": 2, "nodes": 6}),
    ("iTransformer", "iTransformer", "iTransformer", {"num_variates": 5, "lookback_len": 12, "dim": 16, "depth": 2,
     "heads": 2, "dim_head": 8, "pred_length": 4, "use_reversible_instance_norm": True}, (normal("batch", 12, 5),),
     _BATCH),
    ("rotary-embedding-torch", "rotary_embedding_torch", "RotaryEmbedding", {"dim": 8, "cache_if_possible": False},
     (integers("length"),), {"length": 6}),
    ("mambapy", "mambapy.mamba", "Mamba", {}, (normal("batch", "length", 32),), _TEXT),
    ("torchscale", "torchscale.architecture.encoder", "Encoder", {}, _IDS, _TEXT),
)  # fmt: skip


def _of(distribution: str) -> Iterator[Model]:
    for package, file, cls, options, inputs, sizes in _SMALL:
        if package == distribution:
            limits = _MORE if "max_seq_len" in options else {}
            build = _CONFIGURED.get(cls) or _plain(file, cls, options)
            yield Model(package, cls, build, inputs, sizes, limits=limits)


def _plain(file: str, cls: str, options: dict[str, Any]) -> Any:
    return lambda: getattr(importlib.import_module(file), cls)(**options)


def _mamba() -> nn.Module:
    from mambapy.mamba import Mamba, MambaConfig

    module: nn.Module = Mamba(MambaConfig(d_model=32, n_layers=2, pscan=False))
    return module


def _torchscale() -> nn.Module:
    from torchscale.architecture.config import EncoderConfig
    from torchscale.architecture.encoder import Encoder

    config = EncoderConfig(vocab_size=100, encoder_embed_dim=32, encoder_attention_heads=4, encoder_ffn_embed_dim=64,
                           encoder_layers=2)  # fmt: skip
    module: nn.Module = Encoder(config, embed_tokens=nn.Embedding(100, 32))
    return module


_CONFIGURED: dict[str, Any] = {"Mamba": _mamba, "Encoder": _torchscale}

SMALL = {package: (lambda package=package: _of(package)) for package in dict.fromkeys(row[0] for row in _SMALL)}
