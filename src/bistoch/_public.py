"""The names of `bistoch`, all of which need torch: loaded with the first one that is used."""

# those of the table of operators follow its rows
from bistoch.functional import *  # noqa: F403
