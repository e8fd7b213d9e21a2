"""What a causal network takes in the workload encoder, beside what torch allocates."""

import pytest
import torch
from decoder_models import WIDE, write
from living import Living

from featuremill.base.devices import cpu
from featuremill.workload.compute import values_of
from featuremill.workloads import encoder
from featuremill.workloads.encoder import memory

CPU, MIB = cpu(), 2**20
TOKENS, LONGEST = 2048, 512
SHAPE = {**WIDE, "max_position_embeddings": TOKENS}
SHAPES = {
    "llama": SHAPE,
    "gemma2": SHAPE,
    "gpt2": {"n_embd": 256, "n_layer": 4, "n_head": 8, "n_positions": 1024},
    "olmo2": SHAPE,
    "mixtral": SHAPE,
    "bloom": {"hidden_size": 256, "n_layer": 4, "n_head": 8},
    "mamba": {"hidden_size": 256, "num_hidden_layers": 4, "state_size": 16},
}


BF16 = pytest.mark.skipif(not CPU.has_bf16, reason="this CPU has no bf16 instructions")


@pytest.mark.parametrize("dtype", ["fp32", pytest.param("bf16", marks=BF16)])
@pytest.mark.parametrize("name", SHAPES)
def test_the_estimate_is_within_30_per_cent_of_what_lives_at_once(tmp_path, name, dtype):
    """Of texts that are all as long as a text may be. Scores that are bent are all laid out."""
    folder = write(tmp_path / name, name, **SHAPES[name])
    options = encoder.Options(
        model=str(folder), alphabet="texts", dtype=dtype, batch_tokens=TOKENS, max_tokens=LONGEST
    )
    ahead = encoder.weights_ahead(options)
    options = encoder.resolve(options, CPU, ahead)
    model = encoder.load(options, [CPU], ahead)
    (network,) = (
        each for each in vars(model.encoder).values() if isinstance(each, torch.nn.Module)
    )
    held = sum(each.nbytes for each in network.parameters())
    if dtype == "bf16":  # pages of the file, which is in fp32, are read beside
        held += memory.size_of(ahead).file_bytes
    texts = [f"{number}{'0 ' * LONGEST}".encode() for number in range(TOKENS // LONGEST)]
    with Living() as living:
        values_of(encoder, model, texts, TOKENS)
    estimated = encoder.memory_mb(options, CPU, ahead, TOKENS) - memory.CPU_PROCESS_MB
    assert estimated == pytest.approx((held + living.peak) / MIB, rel=0.3)
