"""The device that a command computes on."""

import torch

CPU = torch.device("cpu")


class DeviceLostError(RuntimeError):
    """An error after which no other call on the GPU works in this process."""


def check_device(device: torch.device) -> None:
    """Raise if a GPU no longer works in this process, after an illegal memory access for instance.

    >>> check_device(CPU)
    """
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError as error:
            raise DeviceLostError(first_line(error)) from error


def first_line(error: BaseException) -> str:
    r"""The name of an error and the first line of what it says.

    >>> first_line(ValueError("too large\nby far"))
    'ValueError: too large'
    """
    sentence = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {sentence}"[:300]


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
