"""Training: one loop for every model, runs that can be killed anywhere and go on bit by bit."""

from bistoch.lab.train.checkpoint import CheckpointError as CheckpointError
from bistoch.lab.train.checkpoint import State as State
from bistoch.lab.train.checkpoint import load_checkpoint as load_checkpoint
from bistoch.lab.train.classify import Classify as Classify
from bistoch.lab.train.diverged import DivergedError as DivergedError
from bistoch.lab.train.log import Log as Log
from bistoch.lab.train.log import read_log as read_log
from bistoch.lab.train.loop import Fitted as Fitted
from bistoch.lab.train.loop import Moment as Moment
from bistoch.lab.train.loop import fit as fit
from bistoch.lab.train.open import USUAL as USUAL
from bistoch.lab.train.open import open_task as open_task
from bistoch.lab.train.predict import Guess as Guess
from bistoch.lab.train.predict import predict as predict
from bistoch.lab.train.ranks import Ranks as Ranks
from bistoch.lab.train.ranks import joined_ranks as joined_ranks
from bistoch.lab.train.recipe import Recipe as Recipe
from bistoch.lab.train.recipe import rate_at as rate_at
from bistoch.lab.train.score import evaluate as evaluate
from bistoch.lab.train.setup import Setup as Setup
from bistoch.lab.train.setup import new_model as new_model
from bistoch.lab.train.setup import restore_run as restore_run
from bistoch.lab.train.setup import train_one as train_one
from bistoch.lab.train.task import Batch as Batch
from bistoch.lab.train.task import Task as Task
