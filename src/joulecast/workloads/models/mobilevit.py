"""MobileViT: inverted residuals with transformer layers over patches between them."""

from __future__ import annotations

from joulecast.workloads.config import Config
from joulecast.workloads.models.convolutional import Size, conv_norm_act, mean_pool, vision_info
from joulecast.workloads.models.mobilenet import eighths
from joulecast.workloads.models.net import Net, activation, no_generation
from joulecast.workloads.models.vision import Tower, classifier, emit_layers, image_notes, image_size
from joulecast.workloads.request import Request
from joulecast.workloads.table import Workload


def _mobilevit(config: Config, request: Request) -> Workload:
    no_generation(config, request, "a vision model")
    image, batch = image_size(config, request), request.batch
    hidden = config.sizes("hidden_sizes")
    neck = config.sizes("neck_hidden_sizes")
    if len(hidden) != 3 or len(neck) != 7:
        raise config.error("hidden_sizes must have 3 entries and neck_hidden_sizes 7")
    if config.size("output_stride", default=32) != 32:
        raise config.error("output_stride must be 32: dilated MobileViTs are not supported")
    act = activation(config, "hidden_act", default="silu")
    patch = config.size("patch_size", default=2)
    kernel = config.size("conv_kernel_size", default=3, maximum=31)
    net = Net(config.name, request)
    net.begin_pass("forward", tokens=batch)
    channels = config.size("num_channels", default=3)
    size = conv_norm_act(net, "stem", batch, (channels, neck[0]), (image, image), 3, stride=2, act=act)
    wider = config.real("expand_ratio", 4.0, minimum=0.01, maximum=1000)
    size = _inverted(net, "layers.0.0", batch, neck[0], neck[1], size, 1, wider, act)
    size = _inverted(net, "layers.1.0", batch, neck[1], neck[2], size, 2, wider, act)
    _inverted(net, "layers.1.*", batch, neck[2], neck[2], size, 1, wider, act, count=2)
    for index, (width, depth) in enumerate(zip(hidden, (2, 4, 3), strict=True)):
        layer, outputs = f"layers.{index + 2}", neck[index + 3]
        size = _inverted(net, f"{layer}.downsample", batch, neck[index + 2], outputs, size, 2, wider, act)
        model = Tower(
            hidden=width,
            layers=depth,
            heads=config.size("num_attention_heads", default=4),
            inter=max(1, int(width * config.real("mlp_ratio", 2.0, maximum=1000))),
            activation=act,
            qkv_bias=config.flag("qkv_bias", True),
        )
        _mobile_block(net, layer, batch, outputs, size, model, patch, kernel, act)
    conv_norm_act(net, "expand", batch, (neck[5], neck[6]), size, 1, act=act)
    mean_pool(net, "pool", batch, neck[6], size)
    if any(name.endswith("ForImageClassification") for name in config.words("architectures")):
        classifier(net, config, neck[6])
    info = vision_info(config, image, sum((2, 4, 3)), neck[6])
    return net.build(info=info, notes=image_notes(config, request))


def _inverted(
    net: Net,
    layer: str,
    batch: int,
    inputs: int,
    outputs: int,
    size: Size,
    stride: int,
    wider: float,
    act: str,
    *,
    count: int = 1,
) -> Size:
    """Inverted residuals: widen, filter each channel by itself, narrow."""
    wide = eighths(inputs * wider)
    conv_norm_act(net, f"{layer}.expand", batch, (inputs, wide), size, 1, act=act, count=count)
    out = conv_norm_act(
        net, f"{layer}.depthwise", batch, (wide, wide), size, 3, stride=stride, groups=wide, act=act, count=count
    )
    conv_norm_act(net, f"{layer}.reduce", batch, (wide, outputs), out, 1, count=count)
    if stride == 1 and inputs == outputs:
        net.elementwise("add", f"{layer}.residual", batch * outputs * out[0] * out[1], inputs=2, count=count)
    return out


def _mobile_block(
    net: Net,
    layer: str,
    batch: int,
    channels: int,
    size: Size,
    model: Tower,
    patch: int,
    kernel: int,
    act: str,
) -> None:
    """Convolutions, transformer layers over the places that patches have in common, and fusion with the input."""
    width = model.hidden
    conv_norm_act(net, f"{layer}.local", batch, (channels, channels), size, kernel, act=act)
    net.conv(f"{layer}.project_in", batch, (channels, width), size, (1, 1))
    # An image that does not divide into patches is stretched to the next that does.
    high, wide = ((n + patch - 1) // patch for n in size)
    places, length = batch * patch * patch, high * wide
    net.copy(f"{layer}.unfold", places * length * width, count=2)  # rows apart, then columns
    emit_layers(net, model, f"{layer}.transformer.*", places, length)
    net.norm("layer_norm", f"{layer}.norm", places * length, width, bias=True)
    net.copy(f"{layer}.fold", places * length * width, count=2)
    conv_norm_act(net, f"{layer}.project_out", batch, (width, channels), size, 1, act=act)
    net.copy(f"{layer}.concat", 2 * batch * channels * size[0] * size[1])
    conv_norm_act(net, f"{layer}.fuse", batch, (2 * channels, channels), size, kernel, act=act)


BUILDERS = {"mobilevit": _mobilevit}
