"""Write a regression for contacts whose numbers are RANDOM: its contacts are worth nothing.

It is there to try the workload `contacts` without a download, with the bundled network, which has
no regression; config/examples/contacts.yaml names it. Run as
`python config/examples/random_regression.py random_regression.pt`.
"""

import sys

try:
    import torch
except ImportError as error:
    sys.exit(f"{error.name} is not installed; pip install 'featuremill[esm2]' brings it.")

LAYERS, HEADS = 6, 20  # of mill_t6_8M


def main(path: str) -> None:
    """Write the file as fair-esm's `<name>-contact-regression.pt` are."""
    torch.manual_seed(0)
    weight, bias = torch.randn(1, LAYERS * HEADS), torch.tensor([-1.0])
    key = "contact_head.regression"
    torch.save({"model": {f"{key}.weight": weight, f"{key}.bias": bias}}, path)


if __name__ == "__main__":
    main(sys.argv[1])
