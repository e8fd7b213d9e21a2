"""Read a pickled model from standard input and write its tensors to standard output.

A program of its own (`python -m featuremill.steps.heads.unpickle`): code in the pickle runs in this
process, and only safetensors are returned. Classes that are not installed, such as those of the
training script, are replaced by an empty module, which is enough for a state dict.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from types import SimpleNamespace
from typing import Any


def main() -> None:
    """Read the pickle and write its tensors."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # other output must not mix with the tensors
    import torch
    from safetensors.torch import save

    from featuremill.steps.heads.importing import unwrapped

    class StandIn(torch.nn.Module):
        """A module of an unknown class."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            try:
                return super().find_class(module, name)
            except (ImportError, AttributeError):
                return StandIn

    model = torch.load(
        io.BytesIO(sys.stdin.buffer.read()),
        map_location="cpu",
        weights_only=False,
        pickle_module=SimpleNamespace(Unpickler=Unpickler, load=pickle.load, __name__="pickle"),
    )
    model = unwrapped(model)
    tensors = model.state_dict() if isinstance(model, torch.nn.Module) else dict(model)
    kept = {name: t for name, t in tensors.items() if isinstance(t, torch.Tensor)}
    out.write(save({name: tensor.detach().contiguous() for name, tensor in kept.items()}))
    out.close()


if __name__ == "__main__":
    main()
