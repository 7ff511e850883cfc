"""The command of the first minute: `bistoch demo`."""

from pathlib import Path
from typing import Annotated

from rich.console import Console

from bistoch.cli.errors import user_errors
from bistoch.cli.options import Device, option

Out = Annotated[Path, option("Folder for the page.", file_okay=False)]


@user_errors()
def demo(device: Device = "cpu", out: Out = Path("demo")) -> None:
    """Search with hubs and without, on pictures that come with the package, in under a minute."""
    from bistoch.lab.device import read_device
    from bistoch.lab.search import run_demo

    run_demo(out, Console(highlight=False), read_device(device, "demo"))
