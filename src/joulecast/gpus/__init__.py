"""GPUs: frozen descriptions and the catalogue, one TOML a GPU with the source of each number."""

from joulecast.gpus.catalogue import gpu_names, load_gpu, resolve
from joulecast.gpus.gpu import Gpu, plain_name

__all__ = ["Gpu", "gpu_names", "load_gpu", "plain_name", "resolve"]
