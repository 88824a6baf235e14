"""Audio: openai-whisper, speechbrain, torchaudio, nnAudio, asteroid, openunmix, encodec, vocos."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from tests.support.packages.entry import Input, Model, integers, normal

_FRAMES = {"batch": 2, "frames": 12}
_WAVE = {"batch": 2, "samples": 800}


def whisper() -> Iterator[Model]:
    from whisper.model import AudioEncoder, ModelDimensions, TextDecoder, Whisper

    def all_of_it() -> nn.Module:
        return Whisper(ModelDimensions(20, 16, 32, 2, 2, 100, 12, 32, 2, 2))

    yield Model("openai-whisper", "whisper", all_of_it, (normal("batch", 20, 32), integers("batch", "length")),
                {"batch": 2, "length": 5}, limits={"length": 12})  # fmt: skip
    yield Model("openai-whisper", "encoder", lambda: AudioEncoder(20, 16, 32, 2, 2), (normal("batch", 20, 32),),
                {"batch": 2})  # fmt: skip
    yield Model("openai-whisper", "decoder", lambda: TextDecoder(100, 12, 32, 2, 2),
                (integers("batch", "length"), normal("batch", 16, 32)), {"batch": 2, "length": 5},
                limits={"length": 12})  # fmt: skip


def torchaudio() -> Iterator[Model]:
    from torchaudio import models, transforms

    class Lengths(nn.Module):
        """Frames of full length."""

        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> Any:
            return self.module(x, torch.full((x.shape[0],), x.shape[1]))

    wave = normal("batch", "samples")
    rows: list[tuple[str, Callable[[], nn.Module], tuple[Input, ...], dict[str, int]]] = [
        ("Conformer", lambda: Lengths(models.Conformer(16, 2, 32, 1, 5)), (normal("batch", "frames", 16),), _FRAMES),
        ("Wav2Letter", lambda: models.Wav2Letter(num_classes=10, input_type="mfcc", num_features=8),
         (normal("batch", 8, "frames"),), {"batch": 2, "frames": 64}),
        ("DeepSpeech", lambda: models.DeepSpeech(8, n_hidden=16, n_class=10), (normal("batch", 1, "frames", 8),),
         _FRAMES),
        ("ConvTasNet", lambda: models.ConvTasNet(2, 16, 16, 3, 16, 16, 2, 1), (normal("batch", 1, 800),), {"batch": 2}),
        ("Wav2Vec2", lambda: models.wav2vec2_model("layer_norm", [(16, 10, 5), (16, 3, 2)], False, 32, 0.0, 9, 4, 1, 2,
         0.0, 64, 0.0, 0.0, True, 0.0, 10), (wave,), _WAVE),
        ("WaveRNN", lambda: models.WaveRNN([2, 2], 8, 4, 1, 16, 16, 5, 8, 4, 4), (normal("batch", 1, 4),
         normal("batch", 1, 8, 5)), {"batch": 2}),
        ("Spectrogram", lambda: transforms.Spectrogram(n_fft=64), (wave,), _WAVE),
        ("MelSpectrogram", lambda: transforms.MelSpectrogram(n_fft=128, n_mels=8), (wave,), _WAVE),
        ("MFCC", lambda: transforms.MFCC(n_mfcc=6, melkwargs={"n_fft": 128, "n_mels": 8}), (wave,), _WAVE),
        ("AmplitudeToDB", lambda: transforms.AmplitudeToDB(), (normal("batch", 8, "frames"),), _FRAMES),
        ("Resample", lambda: transforms.Resample(8000, 6000), (wave,), _WAVE),
    ]  # fmt: skip
    for name, build, inputs, sizes in rows:
        yield Model("torchaudio", name, build, inputs, sizes)


def nnaudio() -> Iterator[Model]:
    from nnAudio import features

    wave = (normal("batch", "samples"),)
    sizes = {"batch": 2, "samples": 2400}
    yield Model("nnAudio", "STFT", lambda: features.STFT(n_fft=128, verbose=False), wave, sizes)
    yield Model("nnAudio", "MelSpectrogram", lambda: features.MelSpectrogram(n_fft=128, n_mels=8, verbose=False), wave,
                sizes)  # fmt: skip
    yield Model("nnAudio", "MFCC", lambda: features.MFCC(n_mfcc=6, n_fft=128, n_mels=8, verbose=False), wave, sizes)
    yield Model("nnAudio", "Gammatone", lambda: features.Gammatonegram(n_fft=128, n_bins=8, verbose=False), wave, sizes)
    yield Model("nnAudio", "CQT", lambda: features.CQT1992v2(sr=4000, n_bins=12, fmin=220, verbose=False), wave, sizes)


def openunmix() -> Iterator[Model]:
    from openunmix.model import OpenUnmix

    yield Model("openunmix", "OpenUnmix", lambda: OpenUnmix(nb_bins=17, nb_channels=2, hidden_size=16, nb_layers=1),
                (normal("batch", 2, 17, "frames"),), _FRAMES)  # fmt: skip


def vocos() -> Iterator[Model]:
    from vocos.heads import ISTFTHead
    from vocos.models import VocosBackbone

    yield Model("vocos", "backbone", lambda: VocosBackbone(16, 32, 64, 2), (normal("batch", 16, "frames"),), _FRAMES)
    yield Model("vocos", "ISTFTHead", lambda: ISTFTHead(16, 64, 16), (normal("batch", "frames", 16),), _FRAMES)


def encodec() -> Iterator[Model]:
    from encodec.modules import SEANetDecoder, SEANetEncoder

    options: dict[str, Any] = {"dimension": 16, "n_filters": 4, "ratios": [4, 2], "lstm": 1}
    yield Model("encodec", "encoder", lambda: SEANetEncoder(**options), (normal("batch", 1, 256),), {"batch": 2})
    yield Model("encodec", "decoder", lambda: SEANetDecoder(**options), (normal("batch", 16, 12),), {"batch": 2})


def asteroid() -> Iterator[Model]:
    from asteroid import models

    wave = (normal("batch", 1600),)
    rows: dict[str, Callable[[], nn.Module]] = {
        "ConvTasNet": lambda: models.ConvTasNet(2, n_blocks=2, n_repeats=1, n_filters=16, bn_chan=8, hid_chan=16),
        "DPRNNTasNet": lambda: models.DPRNNTasNet(2, n_filters=16, bn_chan=8, hid_size=8, chunk_size=20, n_repeats=1),
        "DPTNet": lambda: models.DPTNet(2, n_filters=16, chunk_size=20, n_repeats=1, ff_hid=16),
        "SuDORMRF": lambda: models.SuDORMRFNet(2, bn_chan=8, num_blocks=1, upsampling_depth=2, n_filters=16),
        "LSTMTasNet": lambda: models.LSTMTasNet(2, n_filters=16, hid_size=8, num_layers=1),
    }
    for name, build in rows.items():
        yield Model("asteroid", name, build, wave, {"batch": 2})


def speechbrain() -> Iterator[Model]:
    from speechbrain.lobes.models.CRDNN import CRDNN
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN
    from speechbrain.lobes.models.transformer.Transformer import TransformerEncoder
    from speechbrain.lobes.models.Xvector import Xvector
    from speechbrain.nnet import CNN, RNN, normalization, pooling

    frames = (normal("batch", "frames", 16),)
    rows: list[tuple[str, Callable[[], nn.Module]]] = [
        ("CRDNN", lambda: CRDNN(input_size=16, cnn_channels=(4, 4), rnn_layers=1, rnn_neurons=8, dnn_blocks=1,
                                dnn_neurons=8)),
        ("ECAPA_TDNN", lambda: ECAPA_TDNN(16, channels=[16] * 5, lin_neurons=8, attention_channels=8,
                                          res2net_scale=4, se_channels=8)),
        ("Xvector", lambda: Xvector(in_channels=16, tdnn_channels=[8] * 5, lin_neurons=8)),
        ("TransformerEncoder", lambda: TransformerEncoder(num_layers=1, nhead=2, d_ffn=32, d_model=16)),
        ("SincConv", lambda: nn.Sequential(CNN.Conv1d(8, 3, in_channels=16), normalization.BatchNorm1d(input_size=8))),
        ("LiGRU", lambda: RNN.LiGRU(8, input_shape=[None, None, 16], num_layers=1)),
        ("QuasiRNN", lambda: RNN.QuasiRNN(8, input_shape=[None, None, 16], num_layers=1)),
        ("StatisticsPooling", lambda: pooling.StatisticsPooling()),
    ]  # fmt: skip
    for name, build in rows:
        yield Model("speechbrain", name, build, frames, _FRAMES)
