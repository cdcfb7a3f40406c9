#!/usr/bin/env python3
"""Writes the shipped models: layers with the exact shapes of their parameters, and times computed from FLOPs.

    models/generate.py                 writes the models with measured rows into models/
    models/generate.py --check         compares these; exit status 1 if one differs
    models/generate.py --out FOLDER    writes all models into FOLDER, as a build does

The time of a pass is its FLOPs divided by the GPU's rate. The rate is the data sheet's value for the type, times one efficiency
for all models, which was fixed before any simulation. A backward pass takes twice the FLOPs of its forward pass. Layers with
negligible FLOPs (normalization, bias) take the time to read and write their activations, at the data sheet's memory rate times
the same efficiency."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
EFFICIENCY = 0.5


@dataclasses.dataclass(frozen=True)
class Gpu:
    name: str
    flops: float  # f32, per second, from the data sheet
    bytes: float  # of memory traffic, per second


RTX_2080_TI = Gpu("RTX 2080 Ti", 13.45e12, 616e9)
V100 = Gpu("V100 SXM2", 15.7e12, 900e9)


@dataclasses.dataclass
class Layer:
    """A layer; FLOPs and activations are those of the forward pass of one sample."""

    name: str
    parameters: int
    flops: float = 0
    activation_bytes: float = 0
    sparse: dict[str, Any] | None = None


@dataclasses.dataclass
class Image:
    """The input of a convolution, and the layers before it."""

    channels: int
    height: int
    width: int
    layers: list[Layer] = dataclasses.field(default_factory=list)

    def branch(self) -> Image:
        return Image(self.channels, self.height, self.width, self.layers)

    def convolve(
        self, name: str, channels: int, kernel: int | tuple[int, int], stride: int = 1, *, same: bool = True, bias: bool = False
    ) -> Image:
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        self.height = -(-self.height // stride) if same else (self.height - high) // stride + 1
        self.width = -(-self.width // stride) if same else (self.width - wide) // stride + 1
        weights = channels * self.channels * high * wide
        elements = channels * self.height * self.width
        self.layers.append(Layer(name, weights + bias * channels, 2 * weights * self.height * self.width, 4 * elements))
        self.channels = channels
        return self

    def normalize(self, name: str) -> Image:
        self.layers.append(Layer(name, 2 * self.channels, 0, 3 * 4 * self.channels * self.height * self.width))
        return self

    def pool(self, kernel: int, stride: int, *, same: bool = True) -> Image:
        self.height = -(-self.height // stride) if same else (self.height - kernel) // stride + 1
        self.width = -(-self.width // stride) if same else (self.width - kernel) // stride + 1
        return self


def linear(name: str, inputs: int, outputs: int, rows: int = 1, *, bias: bool = True) -> Layer:
    return Layer(name, inputs * outputs + bias * outputs, 2.0 * rows * inputs * outputs, 4.0 * rows * outputs)


def resnet50() -> list[Layer]:
    image = Image(3, 224, 224)
    image.convolve("conv1", 64, 7, 2).normalize("bn1").pool(3, 2)
    for stage, (blocks, planes) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            short = image.branch()
            image.convolve(f"{name}.conv1", planes, 1).normalize(f"{name}.bn1")
            image.convolve(f"{name}.conv2", planes, 3, stride).normalize(f"{name}.bn2")
            image.convolve(f"{name}.conv3", 4 * planes, 1).normalize(f"{name}.bn3")
            if block == 0:
                short.convolve(f"{name}.downsample.conv", 4 * planes, 1, stride).normalize(f"{name}.downsample.bn")
    return [*image.layers, linear("fc", 2048, 1000)]


def densenet201() -> list[Layer]:
    growth = 32
    image = Image(3, 224, 224)
    image.convolve("conv0", 64, 7, 2).normalize("norm0").pool(3, 2)
    blocks = (6, 12, 48, 32)
    for number, layers in enumerate(blocks, start=1):
        for layer in range(1, layers + 1):
            name = f"block{number}.layer{layer}"
            new = image.branch()
            new.normalize(f"{name}.norm1").convolve(f"{name}.conv1", 4 * growth, 1)
            new.normalize(f"{name}.norm2").convolve(f"{name}.conv2", growth, 3)
            image.channels += growth
        if number < len(blocks):
            image.normalize(f"transition{number}.norm").convolve(f"transition{number}.conv", image.channels // 2, 1).pool(2, 2)
    image.normalize("norm5")
    return [*image.layers, linear("classifier", image.channels, 1000)]


def inception_v4() -> list[Layer]:
    image = Image(3, 299, 299)

    def unit(of: Image, name: str, channels: int, kernel: int | tuple[int, int], stride: int = 1, *, same: bool = True) -> Image:
        return of.convolve(f"{name}.conv", channels, kernel, stride, same=same).normalize(f"{name}.bn")

    def mixed(name: str, *branches: Callable[[Image], Image], pooled: int | None = None) -> None:
        """Branches side by side; `pooled`: channels of what is pooled and kept beside them, with stride 2."""
        ends = [branch(image.branch()) for branch in branches]
        image.height, image.width = ends[0].height, ends[0].width
        image.channels = sum(each.channels for each in ends) + (pooled or 0)
        assert all((each.height, each.width) == (image.height, image.width) for each in ends), name

    def chain(name: str, *units: tuple[Any, ...], valid_last: int = 0) -> Callable[[Image], Image]:
        """Units (channels, kernel); the last one, if valid_last, without padding and with that stride."""

        def run(of: Image) -> Image:
            for number, (channels, kernel) in enumerate(units):
                is_last = valid_last and number + 1 == len(units)
                of = unit(of, f"{name}.{number}", channels, kernel, valid_last if is_last else 1, same=not is_last)
            return of

        return run

    def split(name: str, *stem: tuple[Any, ...]) -> Callable[[Image], Image]:
        """The stem, then 1x3 and 3x1 side by side."""

        def run(of: Image) -> Image:
            of = chain(name, *stem)(of)
            ends = [unit(of.branch(), f"{name}.{half}", 256, kernel) for half, kernel in (("a", (1, 3)), ("b", (3, 1)))]
            of.channels = sum(each.channels for each in ends)
            return of

        return run

    unit(image, "stem1", 32, 3, 2, same=False)
    unit(image, "stem2", 32, 3, same=False)
    unit(image, "stem3", 64, 3)
    mixed("mixed_3a", chain("mixed_3a", (96, 3), valid_last=2), pooled=64)
    mixed(
        "mixed_4a",
        chain("mixed_4a.b0", (64, 1), (96, 3), valid_last=1),
        chain("mixed_4a.b1", (64, 1), (64, (1, 7)), (64, (7, 1)), (96, 3), valid_last=1),
    )
    mixed("mixed_5a", chain("mixed_5a", (192, 3), valid_last=2), pooled=192)
    for number in range(4):
        name = f"inception_a{number}"
        mixed(
            name,
            chain(f"{name}.b0", (96, 1)),
            chain(f"{name}.b1", (64, 1), (96, 3)),
            chain(f"{name}.b2", (64, 1), (96, 3), (96, 3)),
            chain(f"{name}.b3", (96, 1)),
        )
    mixed(
        "reduction_a",
        chain("reduction_a.b0", (384, 3), valid_last=2),
        chain("reduction_a.b1", (192, 1), (224, 3), (256, 3), valid_last=2),
        pooled=384,
    )
    for number in range(7):
        name = f"inception_b{number}"
        mixed(
            name,
            chain(f"{name}.b0", (384, 1)),
            chain(f"{name}.b1", (192, 1), (224, (1, 7)), (256, (7, 1))),
            chain(f"{name}.b2", (192, 1), (192, (7, 1)), (224, (1, 7)), (224, (7, 1)), (256, (1, 7))),
            chain(f"{name}.b3", (128, 1)),
        )
    mixed(
        "reduction_b",
        chain("reduction_b.b0", (192, 1), (192, 3), valid_last=2),
        chain("reduction_b.b1", (256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3), valid_last=2),
        pooled=1024,
    )
    for number in range(3):
        name = f"inception_c{number}"
        mixed(
            name,
            chain(f"{name}.b0", (256, 1)),
            split(f"{name}.b1", (384, 1)),
            split(f"{name}.b2", (384, 1), (448, (3, 1)), (512, (1, 3))),
            chain(f"{name}.b3", (256, 1)),
        )
    return [*image.layers, linear("last_linear", image.channels, 1000)]


def alexnet() -> list[Layer]:
    image = Image(3, 224, 224)
    image.convolve("conv1", 64, 11, 4, bias=True)
    image.height = image.width = 55
    image.pool(3, 2, same=False).convolve("conv2", 192, 5, bias=True).pool(3, 2, same=False)
    image.convolve("conv3", 384, 3, bias=True).convolve("conv4", 256, 3, bias=True).convolve("conv5", 256, 3, bias=True)
    return [*image.layers, linear("fc6", 256 * 6 * 6, 4096), linear("fc7", 4096, 4096), linear("fc8", 4096, 1000)]


def bert(layers: int, hidden: int, tokens: int) -> list[Layer]:
    """For pre-training: with the heads; the decoder's weights are the embedding's."""
    vocabulary = 30_522
    activations = 4.0 * tokens * hidden

    def norm(name: str) -> Layer:
        return Layer(name, 2 * hidden, 0, 3 * activations)

    all_layers = [Layer("embeddings", (vocabulary + 512 + 2) * hidden, 0, 3 * activations), norm("embeddings.norm")]
    for number in range(layers):
        name = f"layer{number}"
        all_layers += [linear(f"{name}.{part}", hidden, hidden, tokens) for part in ("query", "key", "value")]
        output = linear(f"{name}.attention.output", hidden, hidden, tokens)
        output.flops += 2 * 2.0 * tokens * tokens * hidden  # scores, and values by them
        all_layers += [output, norm(f"{name}.attention.norm")]
        all_layers += [linear(f"{name}.intermediate", hidden, 4 * hidden, tokens), linear(f"{name}.output", 4 * hidden, hidden, tokens)]
        all_layers.append(norm(f"{name}.norm"))
    decoder = Layer("decoder.bias", vocabulary, 2.0 * tokens * hidden * vocabulary, 4.0 * tokens * vocabulary)
    return [
        *all_layers,
        linear("pooler", hidden, hidden),
        linear("transform", hidden, hidden, tokens),
        norm("transform.norm"),
        decoder,
        linear("seq_relationship", hidden, 2),
    ]


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of a table that one worker touches in a step, and the factors by which several workers touch more together.

    `sparsesync profile` measured them once, on a trace of real data that the command made."""

    command: str
    rows: int
    nnz: float
    densification: dict[int, float]

    def of_width(self, name: str, width: int) -> Layer:
        """Returns the table as a layer, without FLOPs and activations."""
        sparse = {
            "rows": self.rows,
            "width": width,
            "nnz": self.nnz,
            "densification": {str(workers): gamma for workers, gamma in self.densification.items()},
        }
        return Layer(name, self.rows * width, 0, 0, sparse)


# The One Billion Word benchmark: 128 sentences of 20 words. A sampled softmax adds 8,192 words.
WORDS = Rows(
    "sparsesync trace from-tokens lm1b_tokens.npy --rows 793471 --width 512 --batch 2560 --workers 32 --out TRACE",
    793_471,
    1190.2,
    {2: 1.7381, 4: 2.9472, 8: 4.8318, 16: 7.6622, 32: 11.8805},
)
SAMPLED_WORDS = Rows(
    "sparsesync trace from-tokens lm1b_tokens.npy --rows 793471 --width 512 --batch 2560 --sampled 8192 --workers 32 --out TRACE",
    793_471,
    5290.6,
    {2: 1.781, 4: 3.1377, 8: 5.456, 16: 9.3602, 32: 15.8005},
)
# Criteo's advertising data: 1,024 samples of 26 fields.
FIELDS = Rows(
    "sparsesync trace from-fields criteo_fields.npy --width 16 --batch 1024 --workers 16 --out TRACE",
    205_065,
    6260.1,
    {2: 1.6912, 4: 2.8149, 8: 4.6109, 16: 7.4346},
)


def lstm() -> list[Layer]:
    """LSTM-2048-512 of Jozefowicz et al. (arXiv 1602.02410): sentences of 20 words, 8,192 sampled words for a batch of 128."""
    words, embedded, hidden, drawn, batch = 20, 512, 2048, 8192, 128
    gates = 4 * hidden * (embedded + embedded)
    cell = Layer("lstm", gates + 4 * hidden + hidden * embedded, 2.0 * words * (gates + hidden * embedded), 4.0 * words * 5 * hidden)
    table = WORDS.of_width("embedding", embedded)
    table.activation_bytes = 2 * 4.0 * words * embedded
    softmax = SAMPLED_WORDS.of_width("softmax.weight", embedded)
    softmax.flops = 2.0 * words * embedded * (drawn + 1)
    softmax.activation_bytes = 4.0 * words * drawn
    bias = SAMPLED_WORDS.of_width("softmax.bias", 1)
    bias.activation_bytes = 4.0 * drawn / batch
    return [table, cell, softmax, bias]


def deepfm() -> list[Layer]:
    """DeepFM (arXiv 1703.04247) with three layers of 400. The width gives the tables of our data the 214 M elements of Zen's
    evaluation."""
    fields, numbers, width, hidden = 26, 13, 1044, 400
    linear_rows = FIELDS.of_width("linear", 1)
    linear_rows.activation_bytes = 2 * 4.0 * fields
    table = FIELDS.of_width("embedding", width)
    table.activation_bytes = 3 * 4.0 * fields * width  # includes the products of factors
    layers = [linear_rows, table]
    inputs = fields * width + numbers
    for number in range(3):
        layers.append(linear(f"mlp{number}", inputs, hidden))
        inputs = hidden
    return [*layers, linear("out", hidden, 1)]


@dataclasses.dataclass
class Model:
    name: str
    file: str
    gpu: Gpu
    batch: int  # samples per worker
    layers: list[Layer]
    parameters: int  # the authors' count
    rows: tuple[Rows, ...] = ()


def models() -> Iterator[Model]:
    # Batches are those of DeAR's evaluation; AlexNet's is GradientFlow's.
    yield Model("ResNet-50", "resnet50", RTX_2080_TI, 64, resnet50(), 25_557_032)
    yield Model("DenseNet-201", "densenet201", RTX_2080_TI, 32, densenet201(), 20_013_928)
    yield Model("Inception-v4", "inception_v4", RTX_2080_TI, 64, inception_v4(), 42_679_816)
    yield Model("BERT-Base", "bert_base", RTX_2080_TI, 64, bert(12, 768, 64), 110_106_428)
    yield Model("BERT-Large", "bert_large", RTX_2080_TI, 32, bert(24, 1024, 64), 336_226_108)
    yield Model("AlexNet", "alexnet", V100, 128, alexnet(), 61_100_840)
    # Models of Zen's evaluation: the tables, and the other layers, which its authors leave out.
    yield Model("LSTM", "lstm", V100, 128, lstm(), 2 * 793_471 * 512 + 793_471 + 9_445_376, (WORDS, SAMPLED_WORDS))
    of_layers = 27_157 * 400 + 400 + 2 * (400 * 401) + 401
    yield Model("DeepFM", "deepfm", V100, 1024, deepfm(), 205_065 * 1045 + of_layers, (FIELDS,))


def text_of(model: Model) -> str:
    layers = []
    for each in model.layers:
        seconds = max(each.flops / model.gpu.flops, each.activation_bytes / model.gpu.bytes) * model.batch / EFFICIENCY
        gradient = {"sparse": each.sparse} if each.sparse else {"bytes": 4 * each.parameters}
        layers.append({"name": each.name, "forward_s": seconds, "backward_s": 2 * seconds, **gradient})
    provenance: dict[str, Any] = {
        "gpu": model.gpu.name,
        "flops": model.gpu.flops,
        "bytes_per_s": model.gpu.bytes,
        "efficiency": EFFICIENCY,
        "batch": model.batch,
        "made_by": "models/generate.py",
    }
    if model.rows:
        provenance["rows"] = [f"{each.command}; sparsesync profile TRACE" for each in model.rows]
    return json.dumps({"name": model.name, "layers": layers, "provenance": provenance}, indent=1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--check", action="store_true", help="compare, and write nothing")
    either.add_argument("--out", type=pathlib.Path, help="folder for all models")
    given = parser.parse_args()
    folder = given.out or HERE
    folder.mkdir(parents=True, exist_ok=True)
    differs = False
    for model in models():
        found = sum(each.parameters for each in model.layers)
        if found != model.parameters:
            print(f"{model.name}: {found:,} parameters, not {model.parameters:,}", file=sys.stderr)
            differs = True
        if not given.out and not model.rows:
            continue  # only builds write it
        path = folder / f"{model.file}.json"
        text = text_of(model)
        if not given.check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path.name} is not what generate.py makes: run models/generate.py", file=sys.stderr)
            differs = True
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
