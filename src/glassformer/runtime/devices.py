"""The device to compute on, by the name that a user gives."""

import torch


class DeviceError(ValueError):
    """A device cannot compute here."""

    def __init__(self, name: str, problem: str):
        super().__init__(f"device={name!r}{problem}")
        self.for_command_line = f"--device {name}{problem}"
        """The message for users of the command line, who gave a flag instead of an argument."""


def choose_device(name: str) -> torch.device:
    """Return the torch device of this name; "auto" is cuda if available, else cpu.

    Raise DeviceError, a ValueError, if it cannot compute here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(name, " is not a torch device: expected auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DeviceError(name, ": no CUDA device is available; expected cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(name, f": there are {torch.cuda.device_count()} CUDA devices, counted from 0")
    if device.type not in ("cpu", "cuda"):
        try:
            torch.ones(1, device=device).item()
        except (RuntimeError, AssertionError, NotImplementedError, ImportError):
            raise DeviceError(name, " cannot compute here: expected auto, cpu or cuda") from None
    return device
