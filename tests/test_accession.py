"""accession: what tables are joined on, out of the ids of the databases."""

import pyarrow as pa
import pytest

from featuremill.base.id_columns import accession, accessions

CASES = {
    "sp|P12345|AATM_RABIT": "P12345",
    "tr|A0A023FBW4|A0A023FBW4_9HEMI": "A0A023FBW4",
    "sp|P12345-2|AATM_RABIT": "P12345-2",
    "tr|P12345": "P12345",
    "P12345": "P12345",
    "AATM_RABIT": "AATM_RABIT",
    "UniRef50_P12345": "P12345",
    "UniRef100_A0A023FBW4": "A0A023FBW4",
    "UniRef90_UPI0000ABCDEF": "UPI0000ABCDEF",
    "UniRef90_UPI0000": "UniRef90_UPI0000",
    "AF-P12345-F1": "P12345",
    "AFDB:AF-P12345-F1-model_v4": "P12345",
    "ref|NP_000549.1|": "NP_000549.1",
    "gi|4504345|ref|NP_000549.1|": "NP_000549.1",
    "gi|129295|sp|P01013.1|OVAX_CHICK": "P01013",
    "gb|AAA12345.1|": "AAA12345.1",
    "emb|CAA12345.1|": "CAA12345.1",
    "ref|WP_012345678.1|": "WP_012345678.1",
    "NP_000549.1": "NP_000549.1",
    "lcl|NC_000913.3_prot_NP_414542.1_1": "NP_414542.1",
    "gi|4504345": "gi|4504345",
    "pdb|4HHB|A": "pdb|4HHB|A",
    "sp|P1|A_B": "sp|P1|A_B",
    "sp|p12345|lower": "sp|p12345|lower",
    "sp|P12345|A|B": "sp|P12345|A|B",
    "sp||": "sp||",
    "k127_9 flag=1": "k127_9 flag=1",
    "sp|P12345\u00e9|X": "sp|P12345\u00e9|X",
    "": "",
}


@pytest.mark.parametrize("chunked", [False, True])
def test_each_kind_of_id(chunked):
    ids = pa.array(CASES)
    found = accessions(pa.chunked_array([ids[:3], ids[3:]]) if chunked else ids)
    assert dict(zip(CASES, found.to_pylist(), strict=True)) == CASES
    assert {id: accession(id) for id in CASES} == CASES


def test_no_ids_are_no_accessions():
    assert accessions(pa.array([], pa.string())).to_pylist() == []
