"""The local web page that shows plans while an operator changes: `bistoch explore`."""

from bistoch.explorer.serve import explore as explore
from bistoch.explorer.serve import load_subjects as load_subjects
from bistoch.explorer.state import State as State
from bistoch.explorer.view import look as look
from bistoch.explorer.view import python_lines as python_lines
from bistoch.explorer.vit import load_vit as load_vit
