from pathlib import Path

from rich.console import Console

from bistoch.lab.reproduce.study import Settings


def run_sinks(settings: Settings, console: Console) -> Path:
    raise NotImplementedError
