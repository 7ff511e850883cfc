"""`python -m bistoch` is the command `bistoch`."""

from bistoch.cli import app

app(prog_name="bistoch")
