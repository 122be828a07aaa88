"""Small convolutional networks: MobileNetV2, SqueezeNet, ConvMixer."""

from __future__ import annotations

from joulecast.workloads.config import Config
from joulecast.workloads.models.convolutional import Size, conv_norm_act, mean_pool, vision_info
from joulecast.workloads.models.net import Net, no_generation
from joulecast.workloads.models.vision import classifier, image_notes, image_size
from joulecast.workloads.request import Request
from joulecast.workloads.table import Workload

#: MobileNetV2's stages: widening, channels, blocks, stride of the first (Sandler et al., arXiv 1801.04381, table 2).
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def eighths(width: float) -> int:
    """`width` rounded to a multiple of 8, at least 8, never down by more than a tenth."""
    rounded = max(8, int(width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * width else rounded


def _mobilenet_v2(config: Config, request: Request) -> Workload:
    no_generation(config, request, "a vision model")
    image, batch = image_size(config, request), request.batch
    if config.size("output_stride", default=32) != 32:
        raise config.error("output_stride must be 32: dilated MobileNets are not supported")
    multiplier = config.real("depth_multiplier", 1.0, minimum=0.01, maximum=1000)
    net = Net(config.name, request)
    net.begin_pass("forward", tokens=batch)
    inputs = eighths(32 * multiplier)
    channels = (config.size("num_channels", default=3), inputs)
    size = conv_norm_act(net, "stem", batch, channels, (image, image), 3, stride=2, act="relu")
    for stage, (wider, width, depth, stride) in enumerate(_STAGES):
        outputs = eighths(width * multiplier)
        size = _inverted(net, f"stages.{stage}.0", batch, (inputs, outputs), size, stride, wider, 1)
        if depth > 1:
            _inverted(net, f"stages.{stage}.*", batch, (outputs, outputs), size, 1, wider, depth - 1)
        inputs = outputs
    last = eighths(1280 * multiplier) if multiplier > 1 else 1280
    conv_norm_act(net, "head", batch, (inputs, last), size, 1, act="relu")
    mean_pool(net, "pool", batch, last, size)
    classifier(net, config, last)
    # 52 convolutions with their norms, 35 of them with an activation, 16 blocks beside the stem's, and five around
    info = {**vision_info(config, image, 52, last), "module_calls": 2 * 52 + 35 + 16 + 5}
    return net.build(info=info, notes=image_notes(config, request))


def _inverted(
    net: Net, layer: str, batch: int, channels: Size, size: Size, stride: int, wider: int, count: int
) -> Size:
    """`count` inverted residuals: widen, filter each channel by itself, narrow."""
    inputs, outputs = channels
    wide = inputs * wider
    if wider > 1:
        conv_norm_act(net, f"{layer}.expand", batch, (inputs, wide), size, 1, count=count, act="relu")
    out = conv_norm_act(
        net, f"{layer}.depthwise", batch, (wide, wide), size, 3, stride=stride, groups=wide, count=count, act="relu"
    )
    conv_norm_act(net, f"{layer}.reduce", batch, (wide, outputs), out, 1, count=count)
    if stride == 1 and inputs == outputs:
        net.elementwise("add", f"{layer}.residual", batch * outputs * out[0] * out[1], inputs=2, count=count)
    return out


#: SqueezeNet's fire modules: squeezed channels and, of each of two filters, expanded ones; before which
#: modules it pools; filter, channels and padding of its first layer (Iandola et al., arXiv 1602.07360, and its code).
_FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
_SQUEEZENETS = {"1.0": ((7, 96), (0, 3, 7)), "1.1": ((3, 64), (0, 2, 4))}


def _squeezenet(config: Config, request: Request) -> Workload:
    no_generation(config, request, "a vision model")
    image, batch = image_size(config, request), request.batch
    version = config.word("version", "1.1")
    if version not in _SQUEEZENETS:
        raise config.error(f"version must be one of {', '.join(_SQUEEZENETS)}, got {version!r}")
    (kernel, inputs), pools = _SQUEEZENETS[version]
    net = Net(config.name, request)
    net.begin_pass("forward", tokens=batch)
    channels = (config.size("num_channels", default=3), inputs)
    size = _conv_act(net, "stem", batch, channels, (image, image), kernel, stride=2, padding=0)
    for index, (squeezed, expanded) in enumerate(_FIRES):
        layer = f"fires.{index}"
        if index in pools:
            if min(size) < 3:
                raise config.error(f"an image of {image} x {image} is too small for three poolings")
            size = (-(-(size[0] - 3) // 2) + 1, -(-(size[1] - 3) // 2) + 1)
            net.reduction("pool", f"{layer}.pool", batch * inputs * size[0] * size[1], 4)
        _conv_act(net, f"{layer}.squeeze", batch, (inputs, squeezed), size, 1)
        _conv_act(net, f"{layer}.expand1", batch, (squeezed, expanded), size, 1)
        _conv_act(net, f"{layer}.expand3", batch, (squeezed, expanded), size, 3, padding=1)
        inputs = 2 * expanded
        net.copy(f"{layer}.concat", batch * inputs * size[0] * size[1])
    labels = config.size("num_labels", "num_classes", default=1000)
    _conv_act(net, "classifier", batch, (inputs, labels), size, 1)
    mean_pool(net, "pool", batch, labels, size)
    return net.build(info=vision_info(config, image, 26, inputs), notes=image_notes(config, request))


def _conv_act(
    net: Net, layer: str, batch: int, channels: Size, size: Size, kernel: int, *, stride: int = 1, padding: int = 0
) -> Size:
    out = net.conv(layer, batch, channels, size, (kernel, kernel), stride=stride, padding=padding, bias=True)
    net.elementwise("relu", f"{layer}.activation", batch * channels[1] * out[0] * out[1])
    return out


def _convmixer(config: Config, request: Request) -> Workload:
    """ConvMixer, by `dim`, `depth`, `kernel_size` and `patch_size` (Trockman and Kolter, arXiv 2201.09792)."""
    no_generation(config, request, "a vision model")
    image, batch = image_size(config, request), request.batch
    dim, depth = config.size("dim"), config.layers("depth")
    kernel, patch = config.size("kernel_size", maximum=63), config.size("patch_size")
    if kernel % 2 == 0:
        raise config.error(f"kernel_size must be odd, got {kernel}")
    net = Net(config.name, request)
    net.begin_pass("forward", tokens=batch)
    channels = config.size("num_channels", default=3)
    size = net.conv("stem", batch, (channels, dim), (image, image), (patch, patch), stride=patch, bias=True)
    elements = batch * dim * size[0] * size[1]
    _act_norm(net, "stem", dim, elements, 1)
    for layer, groups, width in (("depthwise", dim, kernel), ("pointwise", 1, 1)):
        path = f"layers.*.{layer}"
        net.conv(
            path, batch, (dim, dim), size, (width, width), padding=width // 2, groups=groups, bias=True, count=depth
        )
        _act_norm(net, path, dim, elements, depth)
        if groups > 1:
            net.elementwise("add", f"{path}.residual", elements, inputs=2, count=depth)
    mean_pool(net, "pool", batch, dim, size)
    classifier(net, config, dim)
    return net.build(info=vision_info(config, image, 2 * depth + 1, dim), notes=image_notes(config, request))


def _act_norm(net: Net, layer: str, dim: int, elements: int, count: int) -> None:
    net.elementwise("gelu", f"{layer}.activation", elements, count=count)
    net.weight(2 * dim, stored=count)
    net.elementwise("scale", f"{layer}.norm", elements, count=count, flop=2)


BUILDERS = {"mobilenet_v2": _mobilenet_v2, "squeezenet": _squeezenet, "convmixer": _convmixer}
