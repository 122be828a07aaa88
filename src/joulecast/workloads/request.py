"""`Request`: what is asked of a model, apart from how it is run."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

from joulecast.bounds.dtypes import dtype
from joulecast.errors import InputError, shortened

#: Largest batch or length that is taken; whether it fits a GPU's memory is asked later.
LARGEST_SIZE = 2**31

#: Which positions get scores: the last of each sequence, all, or none (the bare model, without its head).
LOGITS = ("last", "all", "none")

#: Format of the matrix multiplies where activations and weights differ.
_MIXED = {
    ("w16", "int8"): "w8a16",
    ("w16", "fp8"): "w8a16",
    ("w16", "int4"): "w4a16",
    ("w16", "mxfp4"): "w4a16_mxfp4",
    ("fp8", "mxfp4"): "w4a8_mxfp4",
    ("w16", "w8a8"): "w8a8",
    ("w16", "w8a16"): "w8a16",
    ("w16", "w4a16"): "w4a16",
    ("w16", "w4a16_mxfp4"): "w4a16_mxfp4",
    ("w16", "w4a8_mxfp4"): "w4a8_mxfp4",
}


@dataclass(frozen=True)
class Request:
    """What is asked of a model: how much it takes in and gives, and in which formats.

    Attributes
    ----------
    batch : int
        Sequences or images at once.
    prompt_tokens : int, optional
        Tokens a sequence that are read at once, by encoders too; 512, or the model's limit if less.
        For Whisper, whose encoder always reads 30 s of audio: tokens of the decoder's prompt, 4.
    generate_tokens : int
        Tokens to generate a sequence. The first comes out of the prefill, so that `generate_tokens`
        of them take a prefill and ``generate_tokens - 1`` decoding steps.
    decoder_tokens : int
        Tokens a sequence that the decoder of an encoder-decoder model starts from.
    image_size : int, optional
        Rows and columns of the image; the model's own by default.
    dtype : str
        Format of the model. The matrix multiplies run in it; where it is quantised, all else runs in
        bf16, and embeddings, norms, the expert router and the vocabulary head stay in 16 bit.
    weight_dtype : str, optional
        Format of the weights of matrix multiplies where it differs from `dtype`.
    kv_cache_dtype : str, optional
        Format of cached keys and values; that of attention by default.
    attn_dtype : str, optional
        Format of the attention arithmetic; that of the activations by default.
    logits : str
        One of `LOGITS`.
    pooler : bool
        Whether the pooled output of BERT-like encoders and of ViT (a dense layer and tanh on the first
        token) is computed; its parameters count in any case.

    Raises
    ------
    InputError
        For a size that is no whole number between 1 and `LARGEST_SIZE`, an unknown format or word, or
        formats of weights and activations that no matrix multiply combines.
    """

    batch: int = 1
    prompt_tokens: int | None = None
    generate_tokens: int = 0
    decoder_tokens: int = 1
    image_size: int | None = None
    dtype: str = "bf16"
    weight_dtype: str | None = None
    kv_cache_dtype: str | None = None
    attn_dtype: str | None = None
    logits: str = "last"
    pooler: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "prompt_tokens", "generate_tokens", "decoder_tokens", "image_size"):
            value = getattr(self, name)
            if value is None and name in ("prompt_tokens", "image_size"):
                continue
            object.__setattr__(self, name, _size(name, value, minimum=0 if name == "generate_tokens" else 1))
        for name in ("dtype", "weight_dtype", "kv_cache_dtype", "attn_dtype"):
            value = getattr(self, name)
            if value is not None or name == "dtype":
                object.__setattr__(self, name, dtype(value).name)
        if self.logits not in LOGITS:
            raise InputError(f"logits must be one of {', '.join(LOGITS)}, got {shortened(self.logits)!r}")
        if not isinstance(self.pooler, bool):
            raise InputError(f"pooler must be true or false, got {shortened(self.pooler)!r}")
        _ = self.gemm_dtype

    @property
    def activation_dtype(self) -> str:
        """Format of what flows between operations: `dtype`, or bf16 (fp32) where that is for multiplies only."""
        if self.dtype in ("fp32", "fp64", "fp16", "bf16"):
            return self.dtype
        return "fp32" if self.dtype == "tf32" else "bf16"

    @property
    def gemm_dtype(self) -> str:
        """Format of the matrix multiplies with quantisable weights."""
        if self.weight_dtype is None or self.weight_dtype == self.dtype:
            return self.dtype
        left = "w16" if self.dtype in ("bf16", "fp16") else self.dtype
        mixed = _MIXED.get((left, self.weight_dtype))
        if mixed is None:
            known = ", ".join(sorted({weights for one, weights in _MIXED if one == left})) or "none"
            raise InputError(
                f"no matrix multiply takes {self.dtype} activations and {self.weight_dtype} weights;"
                f" weight formats beside {self.dtype}: {known}"
            )
        return mixed

    @property
    def head_dtype(self) -> str:
        """Format of multiplies that stay unquantised: the vocabulary head and the expert router."""
        return "tf32" if self.dtype == "tf32" else self.activation_dtype

    @property
    def attention_dtype(self) -> str:
        """Format of the attention arithmetic."""
        return self.attn_dtype or self.head_dtype

    @property
    def cache_dtype(self) -> str:
        """Format of cached keys and values."""
        return self.kv_cache_dtype or self.attention_dtype

    @classmethod
    def of(cls, request: Request | None = None, **options: Any) -> Request:
        """`request`, or one made of keyword options; unknown options are refused by name."""
        if request is not None:
            return request
        names = [one.name for one in fields(cls)]
        for name in options:
            if name not in names:
                raise InputError(f"unknown option {shortened(name)!r}: a model takes {', '.join(names)}")
        return cls(**options)


def _size(name: str, value: Any, minimum: int) -> int:
    whole = not isinstance(value, bool) and (
        isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
    )
    if not whole or not minimum <= value <= LARGEST_SIZE:
        bounds = f"between {minimum} and {LARGEST_SIZE}"
        raise InputError(f"{name} must be a whole number {bounds}, got {shortened(value)!r}")
    return int(value)
