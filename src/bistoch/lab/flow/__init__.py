"""The runs behind `bistoch flow`: each follows a flow, measures it, and ends with a page."""

from bistoch.lab.flow.clusters import run_cluster as run_cluster
from bistoch.lab.flow.fashion import run_fashion as run_fashion
from bistoch.lab.flow.gaussian import run_gaussian as run_gaussian
from bistoch.lab.flow.image import run_image as run_image
from bistoch.lab.flow.mixture import run_mixture as run_mixture
from bistoch.lab.flow.points import run_points as run_points
