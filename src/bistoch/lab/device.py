"""The device that a command computes on."""

import torch

CPU = torch.device("cpu")


def read_device(text: str, command: str) -> torch.device:
    """The device of the option `--device`: "cpu", "cuda" or "cuda:1".

    A GPU with a number becomes torch's current device.

    >>> read_device("cpu", "train")
    device(type='cpu')
    """
    kind, _, number = text.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise ValueError(f"{command}: device must be cpu, cuda or cuda:0, but it is {text!r}")
    count = torch.cuda.device_count()
    if kind == "cuda" and count == 0:
        raise ValueError(f"{command}: device must be cpu here, since torch sees no cuda device")
    if kind == "cuda" and int(number or 0) >= count:
        raise ValueError(
            f"{command}: device must be one of cuda:0 to cuda:{count - 1}, but it is {text!r}"
        )
    device = torch.device(text)
    # clocks synchronise the current device, and so do libraries that are asked for no other
    if kind == "cuda" and number and torch.cuda.is_available():
        torch.cuda.set_device(device)
    return device
