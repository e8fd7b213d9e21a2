from featuremill.api import compute as compute
from featuremill.api import engine as engine
from featuremill.api import forget_model as forget_model
from featuremill.base.errors import UserError as UserError
from featuremill.features.loading import load as load
from featuremill.features.loading import load_matrix as load_matrix
from featuremill.flow.python import run as run
from featuremill.steps.transfer.search import search as search
from featuremill.workloads.esm2 import embed as embed

SNAKEFILE: str
"""The workflow: in the wheel beside this file, in a checkout at its root."""

__version__: str
