"""The device to compute on, by the name that a user gives."""

import torch


def choose_device(name: str) -> torch.device:
    """Return the torch device of this name; "auto" is cuda if available, else cpu."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device={name!r} is not a torch device: expected auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={name!r}: no CUDA device is available; expected 'cpu' or 'auto'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device={name!r}: there are {torch.cuda.device_count()} CUDA devices, counted from 0")
    if device.type not in ("cpu", "cuda"):
        try:
            torch.ones(1, device=device).item()
        except (RuntimeError, AssertionError, NotImplementedError, ImportError):
            raise ValueError(f"device={name!r} cannot compute here: expected auto, cpu or cuda") from None
    return device
