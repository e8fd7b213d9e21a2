"""Paired chains for IgBert and IgT5: tokens and vectors of the pair and of each chain, as
transformers has them with the authors' way of writing a pair."""

import csv
import functools
import random
from pathlib import Path

import encoder_models
import pandas as pd
import pytest
import torch
from encoder_models import KINDS, T5_PIECES, network, rows_of, save, write
from esm2_models import relative_l2
from programs import write_fasta

from featuremill.base.errors import UserError
from featuremill.workload.compute import values_of
from featuremill.workloads import encoder

pytestmark = pytest.mark.filterwarnings("ignore:The following device_map keys")
FP32_L2 = 1e-5
HEAVY = (
    "VQLAQSGSELRKPGASVKVSCDTSGHSFTSNAIHWVRQAPGQGLEWMGWINTDTGTPTYAQGFTGRFVFSLDTSARTAYL"
    "QISSLKADDTAVFYCARERDYSDYFFDYWGQGTLVTVSS"
)
LIGHT = (
    "EVVMTQSPASLSVSPGERATLSCRARASLGISTDLAWYQQRPGQAPRLLIYGASTRATGIPARFSGSGSGTEFTLTISSL"
    "QSEDSAVYYCQQYSNWPLTFGGGTKVEIK"
)
"""Of the model cards' example."""
NETWORKS = {"igbert": "protbert", "igt5": "prott5"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders as those of IgBert and IgT5: the vocabularies of ProtBERT and ProtT5, from which
    they were trained on."""
    folder = tmp_path_factory.mktemp("pairs")
    return {name: write(folder / name, kind) for name, kind in NETWORKS.items()}


options_of = functools.partial(encoder_models.asked, paired=True)
loaded = functools.partial(encoder_models.loaded, paired=True)


def encoded(folder, name, heavy, light):
    """Return what the authors' tokenizer gives for what their cards write."""
    import transformers

    heavy, light = (chain.translate(str.maketrans("UZOB", "XXXX")) for chain in (heavy, light))
    if name == "igbert":
        tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"), do_lower_case=False)
    else:
        pieces = [(piece, -1.0) for piece in T5_PIECES]
        tokenizer = transformers.T5Tokenizer(vocab=pieces, extra_ids=0)
    between = "[SEP]" if name == "igbert" else "</s>"
    return tokenizer(" ".join([*heavy, between, *light]), return_special_tokens_mask=True)


def tokens_of(*chains):
    return encoded(*chains)["input_ids"]


def pairs_drawn(seed):
    random_numbers = random.Random(seed)
    letters = "ACDEFGHIKLMNPQRSTVWYXBUZO"
    pairs = {"card": (HEAVY, LIGHT), "tiny": ("M", "K"), "odd": ("QVUZX", "OB-")}
    for number in range(6):
        pairs[f"mab{number}"] = tuple(
            "".join(random_numbers.choices(letters, k=random_numbers.randint(1, 90)))
            for _ in range(2)
        )
    return pairs


def written(path, pairs):
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["sequence_id", "sequence_aa_heavy", "sequence_aa_light", "locus"])
        rows.writerows([id, heavy, light, "IGH"] for id, (heavy, light) in pairs.items())
    return path


COLUMNS = {"heavy_column": "sequence_aa_heavy", "light_column": "sequence_aa_light"}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_pair_and_its_chains_are_those_of_transformers_alone_and_in_a_batch(
    folders, tmp_path, name
):
    import transformers

    folder, pairs = folders[name], pairs_drawn(7)
    layers = [0, 1, 2, 3]
    more = {"pool": ["mean", "mean_all", "max"], "per_residue": True, "output_dtype": "float32"}
    model = loaded(folder, parts=True, layers=layers, **more, **COLUMNS)
    table = written(tmp_path / "in.csv", pairs)
    records = list(encoder.records([table], model.options))
    ids = [id + end for id in pairs for end in ("", "/heavy", "/light")]
    assert [record.id for record in records] == ids
    together = rows_of(model, [record.payload for record in records], 512)
    made = "BertModel" if name == "igbert" else "T5EncoderModel"
    no_head = {"add_pooling_layer": False} if name == "igbert" else {}
    reference = getattr(transformers, made).from_pretrained(folder, **no_head).float().eval()
    first, worst = int(name == "igbert"), 0.0
    for place, (heavy, light) in enumerate(pairs.values()):
        tokens = torch.tensor([tokens_of(folder, name, heavy, light)])
        with torch.inference_mode():
            states = reference(tokens, output_hidden_states=True).hidden_states
        between = first + len(heavy)
        of_heavy = [*range(first, between)]
        of_light = [*range(between + 1, between + 1 + len(light))]
        spans = [[*of_heavy, *of_light], of_heavy, of_light]
        alls = [[*range(tokens.shape[1])], [*range(between)], [between, *of_light]]
        for part, (own, all) in enumerate(zip(spans, alls, strict=True)):
            record = records[3 * place + part]
            assert encoder.num_vectors(record.payload, model.options) == len(own)
            (alone,) = rows_of(model, [record.payload], 512)
            for layer in layers:
                state = states[layer][0]
                vectors = {"mean": state[own].mean(0), "mean_all": state[all].mean(0)}
                vectors |= {"max": state[own].amax(0), "residues": state[own]}
                for key, vector in vectors.items():
                    for row in (together[3 * place + part], alone):
                        ours = torch.tensor(row[f"{key}_layer_{layer}"])
                        worst = max(worst, float(relative_l2(ours, vector)))
    print(f"{name}: largest relative L2 {worst:.1e}")
    assert worst <= FP32_L2


@pytest.mark.parametrize("name", NETWORKS)
def test_the_mean_of_the_cards_counts_what_stands_between_the_chains(folders, tmp_path, name):
    """Their mask is of the special tokens that the tokenizer adds, and the one in the text is not
    among these."""
    model = loaded(folders[name], **COLUMNS, pool=["mean"], per_residue=True)
    table = written(tmp_path / "in.csv", {"a": (HEAVY, LIGHT)})
    (record,) = encoder.records([table], model.options)
    theirs = encoded(folders[name], name, HEAVY, LIGHT)
    assert model.vocabulary.tokens(record.payload).tolist() == theirs["input_ids"]
    assert theirs["special_tokens_mask"].count(0) == len(HEAVY) + len(LIGHT) + 1
    (row,) = rows_of(model, [record.payload], 512)
    assert len(row["residues_layer_3"]) == len(HEAVY) + len(LIGHT)


# Where pairs come from


def read(folder, path, **options):
    return list(encoder.records([path], options_of(folder, **options)[0]))


def test_chains_of_one_id_are_a_pair_wherever_they_stand(folders, tmp_path):
    chains = {
        "mab1_H": "EVQ",
        "mab2_light chain of 2": "DIV",
        "mab1_L": "DIQ",
        "Ab|3|VL": "QAV",
        "mab2_heavy": "qvq*",
        "Ab|3|VH": "QVU",
    }
    found = read(folders["igbert"], write_fasta(tmp_path / "in.fa", chains))
    told = [(record.id, record.payload, record.line, record.note) for record in found]
    assert told == [
        ("mab1", b"EVQ|DIQ", 1, ""),
        ("mab2", b"QVQ|DIV", 9, "* at the end dropped"),
        ("Ab|3", b"QVU|QAV", 11, "U, Z, O and B read as X"),
    ]
    of_table = written(tmp_path / "in.csv", {"mab1": ("EVQ", "DIQ")})
    (row,) = read(folders["igbert"], of_table, **COLUMNS)
    assert row.payload == found[0].payload


def test_a_chain_without_its_partner_is_refused(folders, tmp_path):
    chains = {"mab1_H": "EVQ", "mab2_L": "DIV", "mab3": "MKT", "mab4_H": "EVQ", "mab4_L": "D1Q"}
    found = read(folders["igt5"], write_fasta(tmp_path / "in.fa", chains), parts=True)
    assert {record.id: record.reason for record in found} == {
        "mab3": "not known which chain it is: mab3",
        "mab4": "a chain that cannot be read: light, not an amino acid: '1' at residue 2",
        "mab1_H": "a chain without its partner: no light chain",
        "mab2_L": "a chain without its partner: no heavy chain",
    }
    assert not any(record.payload for record in found)
    pairs = {"a": ("EVQ", ""), "b": ("NA", "DIQ"), "c": ("E*Q", "DIQ"), "d": ("EVQ", "DIQ")}
    csv_rows = read(folders["igt5"], written(tmp_path / "in.csv", pairs), **COLUMNS)
    frame = pd.DataFrame(pairs, index=list(COLUMNS.values())).T.replace({"": None, "NA": None})
    frame.rename_axis("id").reset_index().to_parquet(tmp_path / "in.parquet")
    parquet = read(folders["igt5"], tmp_path / "in.parquet", **COLUMNS)
    for rows in (csv_rows, parquet):
        assert [record.reason for record in rows] == [
            "a chain without its partner: no light chain",
            "a chain without its partner: no heavy chain",
            "a chain that cannot be read: heavy, stop codon (*) inside the sequence: residue 2",
            "",
        ]


def test_columns_count_by_their_names_and_not_by_their_order(folders, tmp_path):
    path = tmp_path / "in.tsv"
    path.write_text("a_light\tid\tz_heavy\nDIQ\tmab1\tEVQ\n")
    columns = {"heavy_column": "z_heavy", "light_column": "a_light"}
    (record,) = read(folders["igt5"], path, **columns)
    assert record.payload == b"EVQ|DIQ"
    with pytest.raises(UserError, match=r"there is no column 'vl'"):
        read(folders["igt5"], path, heavy_column="z_heavy", light_column="vl")


def test_more_than_two_chains_of_an_id_are_refused(folders, tmp_path):
    for chains in ("HLH", "LHH", "HHL", "HH"):
        path = tmp_path / "in.fa"
        path.write_text("".join(f">mab1_{end}\nEVQ\n" for end in chains) + ">a_H\nEV\n>a_L\nDI\n")
        *refused, good = read(folders["igbert"], path)
        reason = "more chains than a pair has: 3 of this id"
        reason = reason if len(chains) > 2 else "a chain without its partner: no light chain"
        assert [(record.id, record.reason) for record in refused] == [
            (f"mab1_{end}", reason) for end in chains
        ]
        assert (good.id, good.payload) == ("a", b"EV|DI")


def test_rows_of_a_cell_are_a_pair_as_in_airr(folders, tmp_path):
    cells = [
        ("AAC-1", "IGH", "EVQ"),
        ("AAG-1", "IGK", "DIQ"),
        ("AAC-1", "IGL", "QSV"),
        ("AAG-1", "IGH", "QVQ"),
        ("AAT-1", "IGH", "QVQ"),
        ("CCC-1", "TRB", "GAV"),
        ("CCG-1", "IGH", "QV1"),
        ("CCG-1", "IGK", "DIQ"),
    ]
    frame = pd.DataFrame(cells, columns=["cell_id", "locus", "sequence_alignment_aa"])
    frame.insert(0, "sequence_id", [f"contig_{number}" for number in range(len(frame))])
    frame.to_csv(tmp_path / "airr.tsv", sep="\t", index=False)
    columns = {"id_column": "cell_id", "sequence_column": "sequence_alignment_aa"}
    path = tmp_path / "airr.tsv"
    found = read(folders["igbert"], path, chain_column="locus", **columns)
    assert [(record.id, record.payload, record.reason) for record in found] == [
        ("CCC-1", b"", "not known which chain it is: TRB"),
        ("AAC-1", b"EVQ|QSV", ""),
        ("AAG-1", b"QVQ|DIQ", ""),
        ("AAT-1", b"", "a chain without its partner: no light chain"),
        ("CCG-1", b"", "a chain that cannot be read: heavy, not an amino acid: '1' at residue 3"),
    ]
    assert [record.line for record in found] == [7, 2, 5, 6, 8]


@pytest.mark.parametrize("is_airr", [True, False])
def test_chains_of_two_files_are_no_pair(folders, tmp_path, is_airr):
    """A barcode of a cell comes in many samples, each with a file of its own."""
    files = {
        "a": [("AAC-1", "IGH", "EVQ"), ("GGG-1", "IGH", "EVQL"), ("GGG-1", "IGK", "DIQ")],
        "b": [("AAC-1", "IGL", "DIV"), ("GGG-1", "IGL", "QAV"), ("GGG-1", "IGH", "QQQ")],
    }
    paths, columns = [], {}
    for name, chains in files.items():
        if is_airr:
            columns = {"chain_column": "locus", "id_column": "cell_id", "sequence_column": "aa"}
            frame = pd.DataFrame(chains, columns=["cell_id", "locus", "aa"])
            paths.append(tmp_path / f"{name}.tsv")
            frame.to_csv(paths[-1], sep="\t", index=False)
        else:
            records = {f"{id}_{locus[2].replace('K', 'L')}": text for id, locus, text in chains}
            paths.append(write_fasta(tmp_path / f"{name}.fa", records))
    options, _ = options_of(folders["igbert"], **columns)
    found = list(encoder.records(paths, options))
    alone = "a chain without its partner: no {} chain".format
    assert [(Path(each.source).stem, each.payload, each.reason) for each in found] == [
        ("a", b"", alone("light")),
        ("a", b"EVQL|DIQ", ""),
        ("b", b"", alone("heavy")),
        ("b", b"QQQ|QAV", ""),
    ]


def test_a_pair_is_never_cut(folders, tmp_path):
    table = written(tmp_path / "in.csv", {"a": ("EVQ", "DIQ"), "b": ("EVQ", "DIQM")})
    fits, longer = read(folders["igt5"], table, max_residues=7, **COLUMNS)
    assert (fits.payload, fits.length) == (b"EVQ|DIQ", 7)
    assert longer.reason == "too long: 8 residues, at most 7" and not longer.payload


def test_gaps_and_rare_residues_are_letters_of_a_chain(folders, tmp_path):
    (record,) = read(
        folders["igbert"], write_fasta(tmp_path / "in.fa", {"a_H": "E-Q", "a_L": "D.U"})
    )
    assert record.payload == b"E-Q|D.U"
    assert "gaps (- or .) are kept" in record.note and "U, Z, O and B read as X" in record.note


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"heavy_column": "heavy"}, "belong together; give both"),
        ({"heavy_column": "a", "light_column": "a"}, "are one column; name two"),
        ({"paired": False, "parts": True}, "parts has no effect with records of one part"),
        ({"paired": False, **COLUMNS}, "heavy_column has no effect with paired: false"),
        ({**COLUMNS, "sequence_column": "s"}, "sequence_column has no effect with heavy_column"),
        ({**COLUMNS, "chain_column": "c"}, "chain_column has no effect with heavy_column"),
        ({"chain_column": "c", "id_column": "i"}, "needs id_column and sequence_column"),
        ({"regions": "r.tsv"}, "regions are of single sequences"),
        ({"parts": True, "pool": ["last"]}, "last is of whole sequences"),
    ],
)
def test_options_that_do_not_go_together_are_refused(folders, given, part):
    with pytest.raises(ValueError, match=part):
        options_of(folders["igbert"], **given)


def test_networks_of_single_sequences_read_no_pairs(tmp_path):
    kind = KINDS["esm2"]
    folder = write(tmp_path / "esm", "esm2")
    save(folder, network(kind, kind.config).state_dict(), "esm.")
    with pytest.raises(UserError, match=r"options\.paired: .* reads no pairs of chains"):
        options_of(folder)


def test_cls_is_of_the_pair(folders, tmp_path):
    table = written(tmp_path / "in.csv", {"a": ("EVQ", "DIQ")})
    model = loaded(folders["igbert"], pool=["cls"], **COLUMNS)
    (record,) = encoder.records([table], model.options)
    assert len(values_of(encoder, model, [record.payload], 64)["cls_layer_3"]) == 1
