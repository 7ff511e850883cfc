"""The names of `bistoch`, all of which need torch: loaded with the first one that is used."""

from bistoch.functional import *  # noqa: F403
