"""Names that people type for models of other workloads."""

import importlib.util
import re

import pytest
from conftest import ROOT
from programs import Desk

from featuremill.workloads.esm2 import sources
from featuremill.workloads.esmc import sources as esmc

TYPED = {
    "ProtT5": "Rostlab/prot_t5_xl_half_uniref50-enc",
    "prot_t5_xl_uniref50": "Rostlab/prot_t5_xl_half_uniref50-enc",
    "Rostlab/prot_t5_xl_uniref50": "Rostlab/prot_t5_xl_uniref50",
    "ProstT5": "Rostlab/ProstT5",
    "Ankh": "ElnaggarLab/ankh-base",
    "ankh3-large": "ElnaggarLab/ankh3-large",
    "ESM-1b": "facebook/esm1b_t33_650M_UR50S",
    "esm1b_t33_650M_UR50S": "facebook/esm1b_t33_650M_UR50S",
    "facebook/esm1b_t33_650M_UR50S": "facebook/esm1b_t33_650M_UR50S",
    "DNABERT-S": "zhihan1996/DNABERT-S",
    "DNABERT-2": "zhihan1996/DNABERT-2-117M",
    "Nucleotide Transformer": "InstaDeepAI/nucleotide-transformer-500m-human-ref",
    "NT-v2": "InstaDeepAI/nucleotide-transformer-v2-500m-multi-species",
    "ESM C": "biohub/ESMC-600M",
    "esmc_300m": "biohub/ESMC-300M",
}


def test_what_downloads_is_installed_first_where_it_is_missing(monkeypatch):
    """As after `pip install featuremill[esm2]`, which brings no `hf`."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = sources.where_else("esmc_300m")
    assert "type pip install huggingface_hub, then hf download biohub/ESMC-300M, then " in said


@pytest.mark.parametrize("name", TYPED)
def test_a_name_leads_to_the_commands_for_it(name):
    said = sources.where_else(name)
    assert f"type hf download {TYPED[name]}, then featuremill init YOUR.fasta --workload " in said


def test_the_workloads_and_the_page_have_the_same_weights():
    page = (ROOT / "docs" / "encoders.md").read_text()
    for one in sources.OTHERS:
        if one.workload == "encoder":
            assert f"`{one.weights}`" in page
        else:
            assert esmc.NAMES[one.model] == one.weights


@pytest.mark.parametrize("name", ["./ankh", "ankh.pt", "mine/ankh", "esm2_t33", "mill_t6_8M", "3B"])
def test_paths_and_our_own_names_are_none_of_them(name):
    assert sources.where_else(name) == ""


def test_a_folder_of_that_name_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ankh").mkdir()
    assert sources.where_else("ankh") == "" and sources.name_of("ankh") == "ankh"


def test_init_says_it_and_what_it_says_makes_a_config(tmp_path, environment):
    desk = Desk(tmp_path, environment)
    (tmp_path / "my.fa").write_text(">p1\nMKVLAA\n")
    said = desk.type("featuremill", "init", "my.fa", "--model", "ProstT5", status=2).err
    command = re.search("featuremill (init .*)[.] Set alphabet: proteins", said)[1]
    desk.type("featuremill", *command.replace("YOUR.fasta", "my.fa").split())
    assert "Rostlab/ProstT5" in (tmp_path / "my.yaml").read_text()
