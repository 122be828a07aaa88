"""Convolutional networks: ResNet, VGG, ConvNeXt."""

from __future__ import annotations

from typing import Any

from joulecast.workloads.config import Config
from joulecast.workloads.models.net import Net, no_generation
from joulecast.workloads.models.vision import classifier, image_notes, image_size
from joulecast.workloads.request import Request
from joulecast.workloads.table import Workload

Size = tuple[int, int]


def conv_norm_act(
    net: Net,
    layer: str,
    batch: int,
    channels: Size,
    size: Size,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    bias: bool = False,
    count: float = 1,
    act: str = "",
) -> Size:
    """A convolution, padded to keep the size but for its stride; batch norm (in inference a scale); activation."""
    out = net.conv(
        layer,
        batch,
        channels,
        size,
        (kernel, kernel),
        stride=stride,
        padding=(kernel - 1) // 2,
        groups=groups,
        bias=bias,
        count=count,
    )
    elements = batch * channels[1] * out[0] * out[1]
    net.weight(2 * channels[1], stored=count)
    net.elementwise("scale", f"{layer}.norm", elements, count=count, flop=2)
    if act:
        net.elementwise(act, f"{layer}.activation", elements, count=count)
    return out


def mean_pool(net: Net, layer: str, batch: int, channels: int, size: Size) -> None:
    """The mean over all places of each channel."""
    net.reduction("pool", layer, batch * channels, size[0] * size[1])


def vision_info(config: Config, size: int, layers: int, hidden: int) -> dict[str, Any]:
    """Facts about a network without attention caches, for `Workload.info`."""
    return {
        "family": config.word("model_type"),
        "image_size": size,
        "hidden_size": hidden,
        "num_layers": layers,
        "kv_bytes_per_token": 0.0,
    }


def _resnet(config: Config, request: Request) -> Workload:
    """ResNet; with `groups` and `width_per_group` (keys of our own) ResNeXt and wide ResNets."""
    no_generation(config, request, "a vision model")
    image, batch = image_size(config, request), request.batch
    hidden = config.sizes("hidden_sizes", (256, 512, 1024, 2048))
    depths = config.sizes("depths", (3, 4, 6, 3), maximum=2**10)
    if len(hidden) != len(depths) or not 0 < len(hidden) <= 16:
        raise config.error(f"hidden_sizes and depths must be of one length, have {len(hidden)} and {len(depths)}")
    stem = config.size("embedding_size", default=64)
    bottleneck = config.word("layer_type", "bottleneck") == "bottleneck"
    early = config.flag("downsample_in_first_stage")
    first_conv = config.flag("downsample_in_bottleneck")
    groups = config.size("groups", default=1)
    # filters of the first stage's middle convolution, all groups together; they double from stage to stage
    base = groups * config.size("width_per_group", default=max(1, hidden[0] // 4))
    net = Net(config.name, request)
    net.begin_pass("forward", tokens=batch)
    size = conv_norm_act(
        net, "stem", batch, (config.size("num_channels", default=3), stem), (image, image), 7, stride=2, act="relu"
    )
    pooled = ((size[0] + 1) // 2, (size[1] + 1) // 2)
    # Each place of the input is read about once: 3 x 3 windows two apart overlap in cache.
    net.reduction("pool", "stem.pool", batch * stem * pooled[0] * pooled[1], 4)
    size, inputs = pooled, stem
    for stage, (outputs, depth) in enumerate(zip(hidden, depths, strict=True)):
        stride = 2 if stage or early else 1
        middle = (max(1, base * outputs // hidden[0]), groups) if bottleneck else None
        first = f"stages.{stage}.0"
        size = _resnet_block(net, first, batch, inputs, outputs, size, stride, 1, middle, first_conv)
        if depth > 1:
            again = f"stages.{stage}.*"
            _resnet_block(net, again, batch, outputs, outputs, size, 1, depth - 1, middle, first_conv)
        inputs = outputs
    mean_pool(net, "pool", batch, inputs, size)
    classifier(net, config, inputs)
    info = vision_info(config, image, sum(depths), inputs)
    # a block is three modules, its shortcut one (two where it multiplies), and each of its convolutions three
    multiplied = len(depths) - (0 if early or hidden[0] != stem else 1)
    info["module_calls"] = sum(depths) * (13 if bottleneck else 10) + multiplied + len(depths) + 11
    return net.build(info=info, notes=image_notes(config, request))


def _resnet_block(
    net: Net,
    layer: str,
    batch: int,
    inputs: int,
    outputs: int,
    size: Size,
    stride: int,
    count: int,
    middle: tuple[int, int] | None,
    first_conv: bool,
) -> Size:
    """`count` residual blocks; returns the size of their output. `middle`: width and groups of a bottleneck."""
    groups = 1
    if middle is not None:
        narrow, groups = middle
        one, three = (stride, 1) if first_conv else (1, stride)
        convs: tuple[tuple[int, int, int, int], ...] = (
            (inputs, narrow, 1, one),
            (narrow, narrow, 3, three),
            (narrow, outputs, 1, 1),
        )
    else:
        convs = ((inputs, outputs, 3, stride), (outputs, outputs, 3, 1))
    if inputs != outputs or stride != 1:
        conv_norm_act(net, f"{layer}.shortcut", batch, (inputs, outputs), size, 1, stride=stride, count=count)
    for index, (reads, writes, kernel, step) in enumerate(convs):
        act = "relu" if index < len(convs) - 1 else ""
        name, channels, grouped = f"{layer}.conv{index}", (reads, writes), groups if kernel > 1 else 1
        size = conv_norm_act(
            net, name, batch, channels, size, kernel, stride=step, groups=grouped, count=count, act=act
        )
    elements = batch * outputs * size[0] * size[1]
    net.elementwise("add", f"{layer}.residual", elements, inputs=2, count=count)
    net.elementwise("relu", f"{layer}.activation", elements, count=count)
    return size


def _vgg(config: Config, request: Request) -> Workload:
    """VGG, by `hidden_sizes`, `depths`, `batch_norm` and `classifier_size` (keys of our own)."""
    no_generation(config, request, "a vision model")
    image, batch = image_size(config, request), request.batch
    hidden = config.sizes("hidden_sizes", (64, 128, 256, 512, 512))
    depths = config.sizes("depths", maximum=2**10)
    if len(hidden) != len(depths) or not 0 < len(hidden) <= 16:
        raise config.error(f"hidden_sizes and depths must be of one length, have {len(hidden)} and {len(depths)}")
    norm = config.flag("batch_norm")
    net = Net(config.name, request)
    net.begin_pass("forward", tokens=batch)
    size, inputs = (image, image), config.size("num_channels", default=3)
    for stage, (outputs, depth) in enumerate(zip(hidden, depths, strict=True)):
        for layer, reads, count in ((f"stages.{stage}.0", inputs, 1), (f"stages.{stage}.*", outputs, depth - 1)):
            if count and norm:
                conv_norm_act(net, layer, batch, (reads, outputs), size, 3, bias=True, count=count, act="relu")
            elif count:
                net.conv(layer, batch, (reads, outputs), size, (3, 3), padding=1, bias=True, count=count)
                elements = batch * outputs * size[0] * size[1]
                net.elementwise("relu", f"{layer}.activation", elements, count=count)
        inputs = outputs
        size = (size[0] // 2, size[1] // 2)
        if min(size) < 1:
            raise config.error(f"an image of {image} x {image} is too small for {len(depths)} halvings")
        net.reduction("pool", f"stages.{stage}.pool", batch * outputs * size[0] * size[1], 4)
    places, width = 7 * 7, config.size("classifier_size", default=4096)
    cells = (size[0] * size[1] + places - 1) // places
    net.reduction("pool", "pool", batch * inputs * places, cells)
    for name, reads in (("fc1", inputs * places), ("fc2", width)):
        net.linear(f"classifier.{name}", batch, reads, width, bias=True)
        net.elementwise("relu", f"classifier.{name}.activation", batch * width)
    classifier(net, config, width)
    info = vision_info(config, image, sum(depths) + 3, inputs)
    return net.build(info=info, notes=image_notes(config, request))


def _convnext(config: Config, request: Request) -> Workload:
    no_generation(config, request, "a vision model")
    image, batch = image_size(config, request), request.batch
    hidden = config.sizes("hidden_sizes", (96, 192, 384, 768))
    depths = config.sizes("depths", (3, 3, 9, 3), maximum=2**10)
    if len(hidden) != len(depths) or not 0 < len(hidden) <= 16:
        raise config.error(f"hidden_sizes and depths must be of one length, have {len(hidden)} and {len(depths)}")
    patch = config.size("patch_size", default=4)
    scaled = config.real("layer_scale_init_value", 1e-6) > 0
    net = Net(config.name, request)
    net.begin_pass("forward", tokens=batch)
    channels = config.size("num_channels", default=3)
    size = net.conv("stem", batch, (channels, hidden[0]), (image, image), (patch, patch), stride=patch, bias=True)
    net.norm("layer_norm", "stem.norm", batch * size[0] * size[1], hidden[0], bias=True)
    for stage, (width, depth) in enumerate(zip(hidden, depths, strict=True)):
        if stage:
            before = hidden[stage - 1]
            layer = f"stages.{stage}.downsample"
            net.norm("layer_norm", f"{layer}.norm", batch * size[0] * size[1], before, bias=True)
            size = net.conv(layer, batch, (before, width), size, (2, 2), stride=2, bias=True, channels_last=True)
        _convnext_blocks(net, f"stages.{stage}.*", batch, width, size, depth, scaled)
    mean_pool(net, "pool", batch, hidden[-1], size)
    net.norm("layer_norm", "final_norm", batch, hidden[-1], bias=True)
    classifier(net, config, hidden[-1])
    info = vision_info(config, image, sum(depths), hidden[-1])
    info["module_calls"] = 4 * sum(depths) + 2 * len(depths) + 5
    return net.build(info=info, notes=image_notes(config, request))


def _convnext_blocks(net: Net, layer: str, batch: int, width: int, size: Size, count: int, scaled: bool) -> None:
    places = batch * size[0] * size[1]
    # The first norm, over channels, leaves those of a pixel together, and all that follows keeps them so.
    net.conv(
        f"{layer}.depthwise", batch, (width, width), size, (7, 7),
        padding=3, groups=width, bias=True, channels_last=True, count=count,
    )  # fmt: skip
    net.norm("layer_norm", f"{layer}.norm", places, width, bias=True, count=count)
    net.linear(f"{layer}.up_proj", places, width, 4 * width, bias=True, count=count)
    net.elementwise("gelu", f"{layer}.activation", places * 4 * width, count=count)
    net.linear(f"{layer}.down_proj", places, 4 * width, width, bias=True, count=count)
    if scaled:
        net.weight(width, stored=count)
        net.elementwise("mul", f"{layer}.layer_scale", places * width, count=count)
    net.elementwise("add", f"{layer}.residual", places * width, inputs=2, count=count)


BUILDERS = {"resnet": _resnet, "vgg": _vgg, "convnext": _convnext}
