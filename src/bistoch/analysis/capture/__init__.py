"""Plans and hidden states of any model, recorded while it runs and without changing its results."""

from bistoch.analysis.capture.record import Captured as Captured
from bistoch.analysis.capture.record import CapturedPlan as CapturedPlan
from bistoch.analysis.capture.record import CapturedState as CapturedState
from bistoch.analysis.capture.record import IncompleteCaptureWarning as IncompleteCaptureWarning
from bistoch.analysis.capture.record import Missed as Missed
from bistoch.analysis.capture.watch import capture as capture
