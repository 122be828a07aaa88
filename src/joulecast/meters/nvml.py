"""An NVIDIA GPU through NVML; needs ``joulecast[measure]``."""

from __future__ import annotations

import os
import time
from typing import Any

from joulecast.errors import InputError, MissingExtraError
from joulecast.meters.device import DeniedError, LostError
from joulecast.meters.window import WindowMeter, WindowSettings

#: Reasons for which NVML says that the clock is held down: software power cap, hardware slowdown (power brake,
#: thermal), software thermal slowdown.
_HELD = 0x0000000000000004 | 0x0000000000000008 | 0x0000000000000020 | 0x0000000000000040 | 0x0000000000000080

#: Field of instantaneous power (``NVML_FI_DEV_POWER_INSTANT``).
_INSTANT = 186


class NvmlDevice:
    """A `joulecast.meters.device.Device` over NVML.

    Parameters
    ----------
    index : int
        As NVML counts; not as CUDA_VISIBLE_DEVICES does.
    identity : str, optional
        UUID (``GPU-...``) or PCI bus address, in place of the index.

    Raises
    ------
    MissingExtraError
        Without the optional part ``measure``.
    InputError
        If there is no driver or no such GPU.
    """

    def __init__(self, index: int = 0, *, identity: str | None = None) -> None:
        try:
            import pynvml
        except ImportError:
            raise MissingExtraError("reading the meters of NVIDIA GPUs", "measure") from None
        self._library: Any = pynvml
        try:
            pynvml.nvmlInit()
            if identity is None:
                self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            elif identity.startswith(("GPU-", "MIG-")):
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(identity)
            else:
                self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(identity)
        except pynvml.NVMLError as error:
            raise InputError(f"no NVIDIA GPU {identity or index} to measure here: {error}") from None

    @property
    def identity(self) -> str:
        """UUID, where the driver tells it, else the name."""
        told = self._ask("nvmlDeviceGetUUID")
        return self.name if told is None else told.decode() if isinstance(told, bytes) else str(told)

    @property
    def name(self) -> str:
        """As the driver calls it."""
        name = self._ask("nvmlDeviceGetName")
        return name.decode() if isinstance(name, bytes) else str(name)

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        """Of the driver."""
        driver = self._library.nvmlSystemGetDriverVersion()
        return (("driver", driver.decode() if isinstance(driver, bytes) else str(driver)),)

    def now_s(self) -> float:
        """Monotonic time. [s]"""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def energy_j(self) -> float | None:
        """The counter since the driver was loaded. [J]"""
        told = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return None if told is None else told * 1e-3

    def instant_power_w(self) -> float | None:
        """By the field that is no average. [W]"""
        found = self._ask("nvmlDeviceGetFieldValues", [_INSTANT])
        if not found or found[0].nvmlReturn != self._library.NVML_SUCCESS:
            return None
        return float(found[0].value.uiVal) * 1e-3

    def average_power_w(self) -> float | None:
        """By ``nvmlDeviceGetPowerUsage``, an average over a second on newer GPUs. [W]"""
        told = self._ask("nvmlDeviceGetPowerUsage")
        return None if told is None else told * 1e-3

    def temperature_c(self) -> float | None:
        """Of the GPU. [deg C]"""
        told = self._ask("nvmlDeviceGetTemperature", self._library.NVML_TEMPERATURE_GPU)
        return None if told is None else float(told)

    def clock_mhz(self) -> float | None:
        """Of the SMs. [MHz]"""
        told = self._ask("nvmlDeviceGetClockInfo", self._library.NVML_CLOCK_SM)
        return None if told is None else float(told)

    def limit_w(self) -> float | None:
        """Enforced limit. [W]"""
        told = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        return None if told is None else told * 1e-3

    def throttled(self) -> bool | None:
        """Whether power or temperature holds the clock down."""
        told = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if told is None else bool(told & _HELD)

    def clocks_mhz(self) -> tuple[float, ...]:
        """Core clocks at the memory clock in force. [MHz]"""
        memory = self._ask("nvmlDeviceGetClockInfo", self._library.NVML_CLOCK_MEM)
        if memory is None:
            return ()
        found = self._ask("nvmlDeviceGetSupportedGraphicsClocks", memory)
        if found is None:  # at idle the memory clock is none of those that are listed
            listed = self._ask("nvmlDeviceGetSupportedMemoryClocks") or []
            found = self._ask("nvmlDeviceGetSupportedGraphicsClocks", max(listed)) if listed else None
        return tuple(sorted(float(clock) for clock in found or ()))

    def limits_w(self) -> tuple[float, float] | None:
        """Least and highest limit. [W]"""
        found = self._ask("nvmlDeviceGetPowerManagementLimitConstraints")
        return None if found is None else (found[0] * 1e-3, found[1] * 1e-3)

    def lock_clock(self, clock_mhz: float) -> None:
        """Hold the core clock."""
        self._set("lock the core clock", "nvmlDeviceSetGpuLockedClocks", int(clock_mhz), int(clock_mhz))

    def unlock_clock(self) -> None:
        """Let it go."""
        self._set("unlock the core clock", "nvmlDeviceResetGpuLockedClocks")

    def set_limit(self, limit_w: float) -> None:
        """Set the power limit."""
        self._set("set the power limit", "nvmlDeviceSetPowerManagementLimit", round(limit_w * 1e3))

    def _ask(self, what: str, *arguments: Any) -> Any:
        library = self._library
        if not hasattr(library, what):
            return None
        try:
            return getattr(library, what)(self._handle, *arguments)
        except library.NVMLError as error:
            code = getattr(error, "value", None)
            if code in (library.NVML_ERROR_GPU_IS_LOST, library.NVML_ERROR_UNINITIALIZED, library.NVML_ERROR_UNKNOWN):
                raise LostError(f"the GPU answers no more: {error}") from None
            return None

    def _set(self, words: str, what: str, *arguments: Any) -> None:
        library = self._library
        try:
            getattr(library, what)(self._handle, *arguments)
        except library.NVMLError as error:
            if getattr(error, "value", None) == library.NVML_ERROR_NO_PERMISSION:
                raise DeniedError(
                    f"no right to {words} of {self.name}: run as root, or with CAP_SYS_ADMIN in a container"
                ) from None
            raise DeniedError(f"can't {words} of {self.name}: {error}") from None


def cuda_device(torch: Any) -> NvmlDevice:
    """The GPU that PyTorch launches on now: CUDA_VISIBLE_DEVICES gives GPUs other numbers than NVML does.

    Parameters
    ----------
    torch : module
        With a CUDA device.

    Raises
    ------
    MissingExtraError
        Without the optional part ``measure``.
    InputError
        If NVML does not know it.
    """
    place = torch.cuda.current_device()
    told = torch.cuda.get_device_properties(place)
    if getattr(told, "uuid", None) is not None:
        text = str(told.uuid)
        return NvmlDevice(identity=text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}")
    if hasattr(told, "pci_bus_id"):
        domain = getattr(told, "pci_domain_id", 0)
        return NvmlDevice(identity=f"{domain:08X}:{told.pci_bus_id:02X}:{told.pci_device_id:02X}.0")
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        raise InputError("this PyTorch does not tell which GPU it uses: unset CUDA_VISIBLE_DEVICES to measure")
    return NvmlDevice(place)


def nvml_meter(device: NvmlDevice | int = 0, settings: WindowSettings | None = None) -> WindowMeter:
    """The meter of an NVIDIA GPU, given as a device or by its number as NVML counts."""
    one = NvmlDevice(device) if isinstance(device, int) else device
    return WindowMeter(one, settings or WindowSettings(), "nvml")
