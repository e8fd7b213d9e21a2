"""The option `model` of the workload scores: one network, or several of an ensemble."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from featuremill.inputs import TableOptions
from featuremill.workloads.scores import sources

NOT_PLAIN = re.compile(r"\W")
"""What names of columns do not have, of the names of models."""
ONE_OR_SEVERAL = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 2}]
}


def _joined(value: Any) -> Any:
    """Return several models as one text; of one in a list, that one."""
    if not isinstance(value, list | tuple):
        return value
    if not value or not all(isinstance(each, str) for each in value):
        raise ValueError("give the name or path of a model, or a list of them")
    if twice := next((each for each in value if value.count(each) > 1), ""):
        raise ValueError(f"{twice} stands twice; drop one")
    return sources.BETWEEN.join(value)


class ModelOptions(TableOptions):
    """Which network scores."""

    model: Annotated[str, BeforeValidator(_joined), WithJsonSchema(ONE_OR_SEVERAL)] = "mill_t6_8M"
    """The network, as for the workloads `esm2` and `esmc`: `mill_t6_8M` (comes with featuremill for
    trials; it is not an ESM-2), the name of one of Meta's such as `esm2_t33_650M_UR50D`,
    `esm1v_t33_650M_UR90S_1` (to `_5`) or `esm1b_t33_650M_UR50S`, of an ESM C such as `esmc_300m`,
    or the path of weights of one of these or of a SaProt, with their language-model head. A list of
    networks of one kind and size is an ensemble: scores of each, and their mean."""

    @property
    def networks(self) -> tuple[str, ...]:
        """What stands behind the names of columns for each network; "" for one alone."""
        names = sources.members(self.model)
        if len(names) == 1:
            return ("",)
        return tuple(f"_{NOT_PLAIN.sub('_', name)}" for name in names)

    @property
    def mean(self) -> str:
        """What stands behind the names of columns for the mean of several networks."""
        return f"_mean_of_{len(self.networks)}"
