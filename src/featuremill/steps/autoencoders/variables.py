"""The packages of a training, and the environment variables that torchrun sets for ranks."""

from featuremill.kit.environment import Variable

PACKAGES = dict.fromkeys(("safetensors", "torch"), "featuremill[sae]")
_RANKS = "Set by `torchrun` for the processes of `featuremill sae train`."
TORCHELASTIC_RUN_ID = Variable("TORCHELASTIC_RUN_ID", _RANKS)
RANK = Variable("RANK", _RANKS)
LOCAL_RANK = Variable("LOCAL_RANK", _RANKS)
WORLD_SIZE = Variable("WORLD_SIZE", _RANKS)
TORCHELASTIC_ERROR_FILE = Variable("TORCHELASTIC_ERROR_FILE", _RANKS)
OF_TORCHRUN = (TORCHELASTIC_RUN_ID, RANK, LOCAL_RANK, WORLD_SIZE, TORCHELASTIC_ERROR_FILE)
