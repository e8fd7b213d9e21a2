"""What torchrun sets for each rank of a training."""

from featuremill.base.environment import Variable

TORCHELASTIC_RUN_ID = Variable(
    "TORCHELASTIC_RUN_ID", "With the next four, set by `torchrun` for a rank of `sae train`."
)
RANK = Variable("RANK", "Which of the ranks this process is.")
LOCAL_RANK = Variable("LOCAL_RANK", "Which of this machine's.")
WORLD_SIZE = Variable("WORLD_SIZE", "How many there are.")
TORCHELASTIC_ERROR_FILE = Variable("TORCHELASTIC_ERROR_FILE", "Where a rank writes why it failed.")
OF_TORCHRUN = (TORCHELASTIC_RUN_ID, RANK, LOCAL_RANK, WORLD_SIZE, TORCHELASTIC_ERROR_FILE)
