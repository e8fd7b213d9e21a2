"""Options of workloads that contradict themselves, or have no effect beside others."""

import pytest

from featuremill.workload import find_workload

BASES = {
    "contacts": {"model": "esm2_t6_8M_UR50D"},
    "encoder": {"model": "x", "alphabet": "proteins"},
    "geneformer": {"model": "x", "vocabulary": "x", "medians": "x"},
    "llm_json": {"model": "x", "prompt": "x", "json_schema": "x"},
}
"""What a workload needs to be given."""
ALONE = {"pairs": "none", "maps": False}
REFUSED = {
    "contacts": [
        ({"pairs": "top", "min_probability": 0.3}, "min_probability has no effect"),
        ({"pairs_per_residue": 2.0}, "pairs_per_residue has no effect"),
        ({"long": "full", "max_residues": 5}, "max_residues has no effect"),
        (ALONE, "leave nothing to deliver; set attention_of"),
        ({"maps": False, "output_dtype": "float32"}, "output_dtype has no effect"),
        (ALONE | {"attention_of": ["a"], "regression": "x"}, "regression has no effect"),
    ],
    "encoder": [
        ({"alphabet": ...}, "alphabet"),
        ({"pool": ["none", "mean"]}, "none excludes"),
        ({"pool": "none"}, "nothing to deliver"),
        ({"long": "full", "max_residues": 5}, "no effect with long: full"),
        ({"output_dtype": "float32"}, "no effect with per_residue: false"),
        ({"regions": "r.tsv", "pool": ["mean", "cls"]}, "pool: cls is of whole sequences"),
        ({"structure_column": "x"}, "no effect with no structures"),
        ({"structures": "x", "alphabet": "nucleotides"}, "structures are of proteins"),
    ],
    "esm2": [
        ({"pool": "none"}, "leaves nothing"),
        ({"pool": ["mean", "none"], "per_residue": True}, "excludes"),
        ({"pool": []}, "at least 1"),
        ({"layers": []}, "at least 1"),
        ({"long": "chunk", "max_residues": 10, "chunk_overlap": 10}, "smaller"),
        ({"long": "full", "max_residues": 10}, "no effect"),
        ({"chunk_overlap": 10}, "no effect"),
        ({"output_dtype": "float32"}, "no effect"),
        ({"max_residues": 0}, "greater"),
        ({"pool": "bos", "regions": "r.tsv"}, "whole sequences"),
        ({"layer": 6}, "not permitted"),
    ],
    "geneformer": [
        ({"perturb": "none", "genes": ["A"]}, "genes has no effect with perturb: none"),
        ({"perturb": "delete", "genes": ["A", "B", "A"]}, "name one or several, each once"),
        ({"perturb": "delete", "genes": []}, "name one or several, each once"),
        ({"perturb": "delete", "layers": [0, 1]}, "perturb is of one vector"),
        ({"perturb": "delete", "pool": ["mean", "cls"]}, "perturb is of one vector"),
        ({"counts": "layer/counts"}, "pattern"),
        ({"overexpress_absent": True}, "overexpress_absent has no effect with perturb: none"),
        ({"perturb": "delete", "genes": ["A"], "overexpress_absent": True},
         "overexpress_absent has no effect with perturb: delete"),
        ({"perturb": "overexpress", "overexpress_absent": True},
         "overexpress_absent has no effect with genes: all"),
        ({"gene_shifts": True}, "gene_shifts has no effect with perturb: none"),
        ({"anchor": "A"}, "anchor has no effect with perturb: none"),
        ({"perturb": "overexpress", "anchor": "A"}, "set perturb: delete"),
        ({"perturb": "delete", "genes": ["A", "B"], "anchor": "A"}, "out of genes"),
        ({"perturb": "delete", "genes": ["B", "C"], "anchor": "A", "together": True},
         "leave out together"),
        ({"perturb": "delete", "gene_vectors": True}, "gene_vectors has no effect with perturb"),
        ({"output_dtype": "float32"}, "output_dtype has no effect with gene_vectors: false"),
    ],
    "llm_json": [
        ({"attempts": 2}, "attempts has no effect with temperature: 0"),
        ({"seed": 2}, "seed has no effect with temperature: 0"),
        ({"engine": "vllm", "quantize": "8bit"}, "8bit is not in vllm"),
        ({"temperature": float("nan")}, "finite number"),
    ],
    "pac": [
        ({"phase_bands": [[8, 4]]}, "give the lower edge first"),
        ({"phase_bands": [[0, 4]]}, "greater than 0"),
        ({"amplitude_bands": []}, "at least 1"),
        ({"overlap_seconds": 1}, "no effect without segment_seconds"),
        ({"overlap_seconds": 2, "segment_seconds": 2}, "less than segment_seconds"),
        ({"permutations": 1}, "1 has no deviation; give 0, or 2 and more"),
        ({"phase_bands": {"low": 9, "high": 4, "bands": 2}}, "give the lower edge first"),
        ({"phase_bands": {"low": 2, "high": 4}}, "bands"),
        ({"phase_bands": {"low": 2, "high": 4, "bands": True}}, "a switch is no number"),
        ({"phase_bands": {"low": True, "high": 4, "bands": 2}}, "a switch is no number"),
        ({"amplitude_bands": [[True, 4]]}, "a switch is no number"),
        ({"cycles": [True, 6]}, "a switch is no number"),
    ],
    "scores": [
        ({"variants": "none"}, "leaves nothing to deliver"),
        ({"variants_file": "v.csv"}, "variants_file has no effect with variants: all"),
        ({"output_dtype": "float16"}, "no effect with log_probabilities: none"),
        ({"variants": "none", "marginals": "mutant", "likelihood": "pseudo"}, "marginals has no"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("workload", "options", "part"),
    [(workload, *row) for workload, rows in REFUSED.items() for row in rows],
)
def test_what_contradicts_itself_is_refused(workload, options, part):
    given = BASES.get(workload, {}) | options
    asked = {name: value for name, value in given.items() if value is not ...}
    with pytest.raises(ValueError, match=part):
        find_workload(workload).Options.model_validate(asked)
