"""Draw a run's loss curve: perplexity of masked residues, in training and on the validation split.

    python training/curve.py training/mill_t6_8M.loss.jsonl curve.svg

(Training masks 80 % of the chosen residues with the mask token, validation all of them.)
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import altair as alt
import vl_convert

SMOOTHING = 0.2  # of each new point of the training curve


def points(lines: list[str]) -> list[dict[str, float | str]]:
    """Return the curve's points: tokens, perplexity and what it is of."""
    found: list[dict[str, float | str]] = []
    mean = None
    for row in map(json.loads, lines):
        if "valid_perplexity" in row:
            value, what = row["valid_perplexity"], "validation"
        else:
            mean = row["loss"] if mean is None else mean + SMOOTHING * (row["loss"] - mean)
            value, what = math.exp(mean), "training"
        found.append({"tokens": row["tokens"] / 1e6, "perplexity": value, "split": what})
    return found


def main() -> None:
    """Write the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("curve", type=Path, help="loss.jsonl of a run")
    parser.add_argument("output", type=Path, help="the .svg file to write")
    arguments = parser.parse_args()
    values = points(arguments.curve.read_text().splitlines())
    chart = (
        alt.Chart(alt.Data(values=values), width=480, height=280)
        .mark_line()
        .encode(
            x=alt.X("tokens:Q", title="million tokens"),
            y=alt.Y("perplexity:Q", title="perplexity", scale=alt.Scale(zero=False, clamp=True)),
            color=alt.Color("split:N", title=None),
        )
    )
    arguments.output.write_text(vl_convert.vegalite_to_svg(chart.to_dict()))


if __name__ == "__main__":
    main()
