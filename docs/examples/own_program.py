"""A small encoder of text, for ``joulecast predict --module docs.examples.own_program:encoder``."""

import torch


def encoder() -> tuple[torch.nn.Module, torch.Tensor]:
    """Six layers of 512, on 32 texts of 256 tokens."""
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dtype=torch.bfloat16, device="meta")
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    return model.eval(), torch.empty(32, 256, 512, dtype=torch.bfloat16, device="meta")
