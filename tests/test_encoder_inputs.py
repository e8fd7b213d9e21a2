"""What stands beside the sequences of the workload encoder: structures, regions, prefixes."""

import itertools
import json
import re

import numpy as np
import pytest
import torch
from encoder_models import KINDS, T5_PIECES, loaded, rows_of, save, t5, t5_tokenizer, write
from encoder_models import asked as resolved
from encoder_models import network as made
from esm2_models import demo_proteins, relative_l2
from programs import write_fasta

from featuremill.base.errors import UserError
from featuremill.inputs import letters as payloads
from featuremill.workload.compute import values_of
from featuremill.workloads import encoder
from featuremill.workloads.encoder import vocabulary

pytestmark = pytest.mark.filterwarnings("ignore:The following device_map keys")
FP32_L2 = 1e-5
SAPROT_TOKENS = [
    *("<cls>", "<pad>", "<eos>", "<unk>", "<mask>"),
    *(a + b for a, b in itertools.product("ACDEFGHIKLMNPQRSTVWY#", "pynwrqhgdlvtmfsaeikc#")),
]


# SaProt


@pytest.fixture(scope="module")
def saprot(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saprot") / "saprot"
    folder.mkdir()
    config = KINDS["esm2"].config | {"vocab_size": 446, "mask_token_id": 4}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(SAPROT_TOKENS) + "\n")
    save(folder, made(KINDS["esm2"], config).state_dict(), "esm.")
    return folder


def test_a_residue_and_its_structure_are_one_token_as_in_transformers(saprot, tmp_path):
    from transformers import EsmModel, EsmTokenizer

    proteins = {"one": "MKVLAX", "two": "ACDEFGHIKL", "three": "MKV"}
    structures = {"one": "dpvqac", "two": "DPVQ#ACDEF"}
    options = {"structures": str(write_fasta(tmp_path / "3di.fa", structures))}
    model = loaded(saprot, per_residue=True, output_dtype="float32", **options)
    found = list(encoder.records([write_fasta(tmp_path / "in.fa", proteins)], model.options))
    assert [record.length for record in found] == [6, 10, 3]
    assert found[2].note == "no structure of this record, # for each residue"
    assert found[0].note == "letters that are not in the model's vocabulary"
    values = rows_of(model, [record.payload for record in found], 512)
    tokenizer = EsmTokenizer(str(saprot / "vocab.txt"))
    network = EsmModel.from_pretrained(saprot, add_pooling_layer=False).eval()
    for (id, letters), row in zip(proteins.items(), values, strict=True):
        structure = structures.get(id, "#" * len(letters)).lower()
        text = "".join(a + b for a, b in zip(letters.replace("X", "#"), structure, strict=True))
        with torch.inference_mode():
            state = network(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 1:-1]
        assert relative_l2(torch.tensor(row["residues_layer_3"]), state) <= FP32_L2
        assert relative_l2(torch.tensor(row["mean_layer_3"]), state.mean(0)) <= FP32_L2


def test_structures_come_from_a_column_and_are_cut_with_their_residues(saprot, tmp_path):
    table = tmp_path / "both.csv"
    table.write_text("id,sequence,three_di\none,MKVLA,dpvqa\ntwo,MKVLA,ddddd\n")
    more = {"structures": str(table), "structure_column": "three_di", "max_residues": 3}
    model = loaded(saprot, **more)
    one, two = encoder.records([table], model.options)
    assert (one.payload, two.payload) == (b"MKVLA\ndpvqa", b"MKVLA\nddddd")
    assert encoder.cost(one.payload, model.options) == 5
    assert encoder.num_vectors(one.payload, model.options) == 3
    whole, cut = (rows_of(model, [payload]) for payload in (one.payload, b"MKV\ndpv"))
    assert whole == cut


def test_a_structure_is_of_the_record_with_its_accession(saprot, tmp_path):
    proteins = write_fasta(tmp_path / "in.fa", {"sp|P12345|ONE_HUMAN": "MKV", "two": "MKV"})
    options, _ = resolved(
        saprot, structures=str(write_fasta(tmp_path / "3di.fa", {"P12345": "dpv"}))
    )
    one, two = encoder.records([proteins], options)
    assert (one.payload, two.payload) == (b"MKV\ndpv", b"MKV")


def test_a_structure_of_another_length_fails_its_record_alone(saprot, tmp_path):
    structures = write_fasta(tmp_path / "3di.fa", {"one": "dp", "two": "dpv"})
    options, _ = resolved(saprot, structures=str(structures))
    proteins = write_fasta(tmp_path / "in.fa", {"one": "MKV", "two": "MKV"})
    one, two = encoder.records([proteins], options)
    assert one.reason == "its structure has another length: 2 letters for 3 residues"
    assert one.payload == b"" and two.reason == ""


def test_a_hash_is_a_letter_of_structure_wherever_a_line_breaks(saprot, tmp_path):
    proteins = write_fasta(tmp_path / "in.fa", {"one": "MKVLA", "two": "MKVLA"})
    text = "# of Foldseek\n>one\n##v\n#a\n; and\n\n>two with words\n#####\n"
    (tmp_path / "3di.fa").write_text(text)
    (tmp_path / "3di.tsv").write_text("id\tsequence\none\t##v#a\ntwo\t#####\n")
    for name in ("3di.fa", "3di.tsv"):
        options, _ = resolved(saprot, structures=str(tmp_path / name))
        found = list(encoder.records([proteins], options))
        assert [record.payload for record in found] == [b"MKVLA\n##v#a", b"MKVLA\n#####"]
        assert not any(record.note or record.reason for record in found)


def test_residues_and_their_structure_in_turns_are_read_as_the_two(saprot, tmp_path):
    texts = {
        "one": ("MdKpTvAv", b"MKTA\ndpvv", ""),
        "two": ("Md#pT#\n##Av", b"MXTXA\ndp##v", ""),
        "residues": ("MDKPTV", b"MDKPTV", ""),
        "masked": ("MKTAYIAKqrqisf", b"MKTAYIAKQRQISF", ""),
        "small": ("mdkptv", b"MDKPTV", ""),
        "odd": ("MdKpTvA", b"", "do not take turns: 6 of 7 letters do"),
        "torn": ("MdKpTvAvYIaAcK", b"", "do not take turns: 12 of 14 letters do"),
        "no 3Di": ("MdKxTv", b"", "not a letter of 3Di: 'x' at letter 2"),
        "hash": ("MKT#", b"", "not an amino acid: '#' at residue 4"),
    }
    inputs = write_fasta(
        tmp_path / "in.fa", {id.split()[0]: text for id, (text, *_) in texts.items()}
    )
    options, _ = resolved(saprot)
    found = list(encoder.records([inputs], options))
    for record, (_, payload, reason) in zip(found, texts.values(), strict=True):
        assert record.payload == payload and reason in record.reason
        assert bool(reason) != bool(payload)
    assert [record.length for record in found[:3]] == [4, 5, 6]
    structures = {"one": "dpvv", "two": "ddddd", "residues": "dddddd"}
    beside, _ = resolved(saprot, structures=str(write_fasta(tmp_path / "3di.fa", structures)))
    one, two, residues, *_ = encoder.records([inputs], beside)
    assert one.payload == b"MKTA\ndpvv" and residues.payload == b"MDKPTV\ndddddd"
    assert two.reason == "it has two structures" and not two.payload


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (">one\ndpv\n>two\ndxv\n", r"3di.fa:3: the structure of 'two' .*'x' at letter 2"),
        (">one\ndpv\n>one\nddd\n", r"3di.fa:3: 'one' has two structures"),
        (">other\ndpv\n", "none of its 1 ids is a record of the inputs, whose first is 'one'"),
    ],
)
def test_a_file_of_structures_that_is_none_is_refused(saprot, tmp_path, text, part):
    structures = tmp_path / "3di.fa"
    structures.write_text(text)
    options, _ = resolved(saprot, structures=str(structures))
    with pytest.raises(UserError, match=part):
        list(encoder.records([write_fasta(tmp_path / "in.fa", {"one": "MKV"})], options))


# Regions


@pytest.fixture(scope="module")
def esm2(tmp_path_factory):
    return write(tmp_path_factory.mktemp("esm2") / "esm2", "esm2")


def regions(path, text):
    path.write_text("id\tstart\tend\tname\n" + text)
    return str(path)


def test_regions_are_pooled_from_residues_of_the_whole_record(esm2, tmp_path):
    one, two, three = ((text * 2)[:60] for text in demo_proteins(3, 80))
    proteins = write_fasta(tmp_path / "in.fa", {"one": one, "two": two, "three": three})
    table = regions(tmp_path / "r.tsv", "two\t1\t1\t\none\t5\t12\tloop\none\t12\t60\ttail\n")
    pools = ["mean", "max", "std"]
    more = {"per_residue": True, "output_dtype": "float32"}
    model = loaded(esm2, regions=table, pool=pools, **more)
    found = list(encoder.records([proteins], model.options))
    assert [record.id for record in found] == ["one/loop", "one/tail", "two/1-1", "three"]
    assert found[3].reason == "no region of this record" and found[3].payload == b""
    values = rows_of(model, [record.payload for record in found[:3]], 512)
    whole = rows_of(loaded(esm2, pool="none", **more), [one.encode(), two.encode()], 512)
    for row, (place, start, end) in zip(values, [(0, 4, 12), (0, 11, 60), (1, 0, 1)], strict=True):
        own = np.array(whole[place]["residues_layer_3"], np.float32)[start:end]
        assert relative_l2(np.array(row["residues_layer_3"]), own) <= FP32_L2
        expected = {"mean": own.mean(0), "max": own.max(0), "std": own.std(0)}
        for pool, vector in expected.items():
            assert np.allclose(row[f"{pool}_layer_3"], vector, rtol=1e-4, atol=1e-5)


def test_a_network_sees_a_sequence_once_for_all_its_regions_in_a_batch(esm2, tmp_path):
    table = regions(tmp_path / "r.tsv", "one\t1\t2\t\n")
    model = loaded(esm2, regions=table)
    texts = [b"MKVLA\n\n1-2", b"MKVLA\n\n3-5", b"MKVL\n\n1-2"]
    batch = encoder.prepare(model, texts, 512)
    assert sum(len(group.tokens_BT) for group in batch.groups) == 2
    assert batch.num_own == [2, 3, 2]
    sites = loaded(esm2, regions=table, per_residue=True)
    mixed = [b"MKVLAMKVLA\n\n3-3", b"MKV\n\n1-3"]  # a site of the longest, a stretch of another
    found = values_of(encoder, sites, mixed, 512)["residues_layer_3"].to_pylist()
    assert [len(row) for row in found] == [1, 3]
    together = rows_of(model, texts, 512)
    for text, row in zip(texts, together, strict=True):
        (alone,) = rows_of(model, [text], 512)
        assert np.allclose(alone["mean_layer_3"], row["mean_layer_3"], rtol=1e-4, atol=1e-5)


def test_a_region_names_its_record_by_an_accession(esm2, tmp_path):
    """As the page's example does, of UniProt's own headers."""
    table = regions(tmp_path / "r.tsv", "P01857\t1\t3\tCH1\nP01857\t4\t9\tCH2\nP01859\t1\t2\t\n")
    options, _ = resolved(esm2, regions=table)
    given = {"sp|P01857|IGHG1_HUMAN": "MKVLAMKVLA", "P01859": "MKVL"}
    found = list(encoder.records([write_fasta(tmp_path / "in.fa", given)], options))
    names = ["sp|P01857|IGHG1_HUMAN/CH1", "sp|P01857|IGHG1_HUMAN/CH2", "P01859/1-2"]
    assert [record.id for record in found] == names
    given["tr|P01857|OTHER_HUMAN"] = "MKVLAMKVLAM"
    with pytest.raises(UserError, match=r"r.tsv:2: 'P01857' is the accession of more than one rec"):
        list(encoder.records([write_fasta(tmp_path / "in.fa", given)], options))


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        ("one\t0\t3\t\n", "r.tsv:2: 0 to 3 is no region; residues count from 1"),
        ("one\t1\t3\t\none\t3\t2\t\n", "r.tsv:3: 3 to 2 is no region"),
        ("one\tx\t3\t\n", "r.tsv:2: its start is 'x', and that is no whole number"),
        ("one\t1\t\t\n", "r.tsv:2: its end is .*, and that is no whole number"),
        ("one\t1\t3\ta\none\t2\t3\ta\n", "r.tsv:3: 'one' has two regions called 'a'"),
        ("\t1\t3\t\n", "r.tsv:2: this row has no id"),
        ('one\t1\t3\t"a\nb"\n', "r.tsv:2: the name of this region cannot be part of an id .contro"),
        (
            "One\t1\t3\t\n",
            "none of its 1 ids is a record .* in other capitals, 1 of the others wou",
        ),
        ("one\t1\t3\t\nother\t1\t3\t\n", "r.tsv:3: no record of the inputs is called 'other'"),
    ],
)
def test_a_row_that_is_no_region_is_refused_with_file_and_row(esm2, tmp_path, rows, part):
    options, _ = resolved(esm2, regions=regions(tmp_path / "r.tsv", rows), max_residues=8)
    proteins = write_fasta(tmp_path / "in.fa", {"one": "MKVLAMKVLA"})
    with pytest.raises(UserError, match=part):
        list(encoder.records([proteins], options))


def test_a_region_beyond_the_end_of_its_record_is_refused_and_no_other(esm2, tmp_path):
    table = regions(tmp_path / "r.tsv", "one\t1\t3\t\none\t1\t11\t\none\t1\t9\t\ntwo\t1\t8\t\n")
    options, _ = resolved(esm2, regions=table, max_residues=8)
    proteins = write_fasta(tmp_path / "in.fa", {"one": "MKVLAMKVLA", "two": "MKVLAMKV"})
    found = {record.id: record for record in encoder.records([proteins], options)}
    assert {id: record.reason for id, record in found.items()} == {
        "one/1-3": "",
        "one/1-11": f"a region beyond the end: {table}:3 ends at residue 11 of 10",
        "one/1-9": f"a region beyond max_residues: {table}:4 ends at residue 9 of 8 that are read",
        "two/1-8": "",
    }
    assert [id for id, record in found.items() if not record.payload] == ["one/1-11", "one/1-9"]


def test_what_the_vocabulary_has_no_letters_for_is_refused(esm2, tmp_path):
    with pytest.raises(UserError, match=r"options.structures: .* no letters of structure"):
        resolved(esm2, structures="x")
    folder = write(tmp_path / "dnabert1", "dnabert1")
    with pytest.raises(UserError, match=r"options.regions: .* are no single letters"):
        resolved(folder, regions="x", alphabet="nucleotides")


def test_a_payload_is_its_parts():
    for given in ((b"MKV",), (b"MKV", b"dpv"), (b"MKV", b"", (1, 3)), (b"MKV", b"dpv", (2, 2))):
        parts = payloads.Parts(*given)
        assert payloads.parts_of(parts.payload) == parts
    assert payloads.Parts(b"MKV").payload == b"MKV"


# Prefixes


def test_ankh_3_has_a_prefix_for_features_unless_another_is_chosen(tmp_path):
    folder = tmp_path / "ankh3"
    folder.mkdir()
    config = t5(144, feed_forward_proj="gated-gelu")
    (folder / "config.json").write_text(json.dumps(config))
    save(folder, made(KINDS["ankh"], config).state_dict())
    tokenizer = t5_tokenizer()
    tokenizer.add_special_tokens(["[NLU]", "[S2S]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    letters = [T5_PIECES.index(f"▁{letter}") for letter in "MKVX"]
    nlu = len(T5_PIECES)
    for prefix, first in (("", nlu), ("[NLU]", nlu), ("[S2S]", nlu + 1)):
        words = vocabulary.load(folder, "t5", prefix)
        assert words.tokens(b"MKVU").tolist() == [first, *letters, 1]
    chosen = re.escape("[NLU], [S2S]")
    for wrong in ("[X]", "M"):
        with pytest.raises(UserError, match=f"no token '.*' that may stand .* one of {chosen}"):
            resolved(folder, prefix=wrong)
    usual, other = (
        rows_of(loaded(folder, prefix=prefix), [b"MKV"], 64) for prefix in ("", "[S2S]")
    )
    assert usual != other


def test_letters_of_structure_are_small_ones_to_prostt5(tmp_path):
    from transformers import T5EncoderModel

    folder = write(tmp_path / "prostt5", "prostt5")
    texts = {"small": "dpvvqaclvv", "capital": "DDPVVVVCVW", "mixed": "dpVVqacLWk"}
    inputs = write_fasta(tmp_path / "3di.fa", texts | {"wrong": "dpvx", "hash": "#dpv"})
    more = {"per_residue": True, "output_dtype": "float32", "prefix": "<fold2AA>"}
    model = loaded(folder, **more)
    *found, wrong, hash = encoder.records([inputs], model.options)
    assert wrong.reason == "not a letter of 3Di: 'x' at letter 4" and not wrong.payload
    assert hash.reason == "not a letter of 3Di: '#' at letter 1"
    assert not any(record.note or record.reason for record in found)
    rows = rows_of(model, [record.payload for record in found], 512)
    network = T5EncoderModel.from_pretrained(folder).eval()
    fold2aa, first = 148, len(T5_PIECES)  # of 3Di, in the order of their letters
    for text, row in zip(texts.values(), rows, strict=True):
        own = [first + "acdefghiklmnpqrstvwy".index(letter) for letter in text.lower()]
        with torch.inference_mode():
            state = network(torch.tensor([[fold2aa, *own, 1]])).last_hidden_state[0, 1:-1]
        assert relative_l2(torch.tensor(row["residues_layer_3"]), state) <= FP32_L2


def test_small_letters_of_3di_before_residues_are_noticed(tmp_path):
    folder = write(tmp_path / "prostt5", "prostt5")
    texts = {"3di": "dpvvqaclvv", "residues": "DPVVQACLVV", "rare": "dpvux"}
    options, _ = resolved(folder)
    found = list(encoder.records([write_fasta(tmp_path / "in.fa", texts)], options))
    assert [record.payload for record in found] == [b"DPVVQACLVV", b"DPVVQACLVV", b"DPVUX"]
    notes = ["small letters read as residues, not as 3Di", "", "U, Z, O and B read as X"]
    assert [record.note for record in found] == notes


@pytest.mark.parametrize("prefix", ["<pad>", "<unk>", "</s>", "[S2S]", "<+>"])
def test_a_prefix_is_one_that_the_network_s_authors_use(tmp_path, prefix):
    folder = write(tmp_path / "prostt5", "prostt5")
    with pytest.raises(UserError, match=r"options.prefix: .* take one of <AA2fold>, <fold2AA>\."):
        resolved(folder, prefix=prefix)


def test_ankh_has_rare_residues_and_the_other_t5s_read_x(tmp_path):
    inputs = write_fasta(tmp_path / "in.fa", {"one": "MUZOB"})
    for name, letters in (("ankh", "MUZOB"), ("prott5", "MXXXX")):
        folder = write(tmp_path / name, name)
        model = loaded(folder)
        tokens = [T5_PIECES.index(f"▁{letter}") for letter in letters]
        assert model.vocabulary.tokens(b"MUZOB").tolist() == [*tokens, 1]
        (record,) = encoder.records([inputs], model.options)
        assert record.note == ("U, Z, O and B read as X" if name == "prott5" else "")
