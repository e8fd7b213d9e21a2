"""map: places by t-SNE that are kept, and what the page has of each record."""

import base64
import json

import numpy as np
import openTSNE
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from programs import Verbs, edited
from report_runs import FakeRun, make, points_of

from featuremill import __main__
from featuremill.features.nearest import exact_scores
from featuremill.report import embedding
from featuremill.steps.maps import command, draw, plane

CHLOROBIUM = "Chlorobium tepidum (strain 49652 / TLS)"
SWISS = f"50S ribosomal protein L15 OS={CHLOROBIUM} OX=1 GN=rplO PE=3 SV=1"
REF = "aldehyde oxidase, partial [Homo sapiens]"


@pytest.fixture
def root(tmp_path):
    return FakeRun(ok=90).write(tmp_path / "demo")


def described(root, texts, ids=None):
    """Give the records of a run these descriptions, and perhaps other ids."""
    table = pq.read_table(root / "embeddings.parquet")
    if ids:
        table = table.set_column(0, "id", pa.array(ids, pa.string()))
    pq.write_table(table.append_column("description", pa.array(texts)), root / "embeddings.parquet")


def nearest_of(page):
    return np.frombuffer(base64.b64decode(page.map["nearest"]), "<u2").reshape(-1, page.map["k"])


def names_of(page):
    return [each["name"] for each in page.map["places"]]


def run_map(root, *options):
    return __main__.main(["map", str(root), *options])


def test_the_places_are_kept_with_what_they_were_made_of(root):
    page = make(root)
    assert names_of(page) == ["t-SNE", "PCA"] and "t-SNE" in page.text
    axes = page.map["places"][0]["axes"]
    assert axes.startswith("t-SNE, perplexity 29.7, seed 0."), "which few records have"
    first = (root / "map.parquet").read_bytes()
    table = pq.read_table(root / "map.parquet")
    assert table.column_names == ["id", "tsne_1", "tsne_2"]
    assert table["id"].to_pylist() == pq.read_table(root / "embeddings.parquet")["id"].to_pylist()
    card = json.loads(table.schema.metadata[b"featuremill"])
    assert (card["seed"], card["perplexity"], card["records"], card["of"]) == (0, 30, 90, 90)
    assert card["versions"]["openTSNE"] == openTSNE.__version__
    assert make(root).map == page.map
    assert (root / "map.parquet").read_bytes() == first, "it is computed once"


@pytest.fixture(scope="module")
def of_samples(tmp_path_factory, environment):
    """Return a computed run of two samples, whose records have the same ids."""
    verbs = Verbs(tmp_path_factory.mktemp("samples"), environment)
    random = np.random.default_rng(3)
    sheet = "sample\tfile\tsite\n"
    for sample in ("lake", "sea"):
        proteins = ("".join(random.choice(list("ACDEFGHIKL"), 30)) for _ in range(20))
        text = "".join(f">p{n} of the {sample}\n{protein}\n" for n, protein in enumerate(proteins))
        (verbs.folder / f"{sample}.fa").write_text(text)
        sheet += f"{sample}\t{sample}.fa\tsite of {sample}\n"
    (verbs.folder / "samples.tsv").write_text(sheet)
    told = {"samples": "samples.tsv", "inputs": [], "outputs": ["parquet"]}
    verbs.extract(verbs.plan([], more=("--threads", "1"), **told))
    verbs("merge", verbs.run_folder.root, "--outputs", "parquet")
    return verbs.run_folder.root


def test_samples_may_have_equal_ids(of_samples):
    assert run_map(of_samples) == 0
    first = (of_samples / "map.parquet").read_bytes()
    table = pq.read_table(of_samples / "map.parquet")
    names = [f"{sample}/p{n}" for sample in ("lake", "sea") for n in range(20)]
    assert table["id"].to_pylist() == names
    labels = "".join(f"{name.replace('/', chr(9))}\t{name} it is\n" for name in reversed(names))
    (of_samples / "labels.tsv").write_text(f"sample\tid\tkind\n{labels}")
    colour = ("--label-file", str(of_samples / "labels.tsv"), "--label", "kind")
    page = make(of_samples, *colour)
    assert names_of(page) == ["t-SNE", "PCA"]
    for point in points_of(page):
        sample = point["id"].partition("/")[0]
        assert point["kind"] == f"{point['id']} it is"
        assert (point["sample"], point["site"]) == (sample, f"site of {sample}")
        assert point["description"] == f"of the {sample}"
    assert [point["id"] for point in points_of(page)] == names
    page = make(of_samples)
    assert page.map["colours"][0]["title"] == "sample"
    assert run_map(of_samples) == 0
    assert (of_samples / "map.parquet").read_bytes() == first, "the same seed, the same picture"
    assert run_map(of_samples, "--seed", "1", "--perplexity", "9.5") == 0
    other = make(of_samples)
    assert other.map["places"][0]["xy"] != page.map["places"][0]["xy"]
    assert "perplexity 9.5, seed 1" in other.map["places"][0]["axes"]


def test_a_place_is_found_by_its_id(root):
    page = make(root)
    table = pq.read_table(root / "map.parquet")
    other_order = np.random.default_rng(2).permutation(90)
    pq.write_table(table.take(pa.array(other_order)), root / "map.parquet")
    assert make(root).map["places"] == page.map["places"]
    pq.write_table(table.slice(1), root / "map.parquet")
    assert names_of(make(root)) == ["PCA"], "one record has no place"


def test_of_many_records_it_is_of_a_sample_and_says_so(of_samples, monkeypatch):
    monkeypatch.setattr(command, "MOST_RECORDS", 20)
    for module in (command, draw, embedding):
        monkeypatch.setattr(module, "MOST_SHOWN", 7)
    assert run_map(of_samples) == 0
    num_records = pq.read_metadata(of_samples / "map.parquet").num_rows
    assert 20 <= num_records < 27
    page = make(of_samples)
    assert len(points_of(page)) == 7 and names_of(page) == ["t-SNE", "PCA"]
    assert f"of {num_records} of 40 records" in page.map["places"][0]["axes"]
    (of_samples / "map.parquet").unlink()
    page = make(of_samples)
    assert names_of(page) == ["PCA"], "a report computes it of few records only"
    assert f"For t-SNE too: featuremill map {of_samples} and featuremill report" in page.text


def test_places_of_other_values_are_never_shown(root):
    make(root)
    first = command.read_kept(root, "mean_layer_6")
    with edited(root / "manifest.json") as manifest:
        manifest["parts"] = dict.fromkeys(manifest["parts"], "0" * 64)
    assert first and command.read_kept(root, "mean_layer_6") is None
    before = (root / "map.parquet").read_bytes()
    make(root)
    assert (root / "map.parquet").read_bytes() != before, "it is made of the new values"
    (root / "map.parquet").write_bytes(b"PAR1 and no more")
    assert names_of(make(root)) == ["t-SNE", "PCA"]


def test_a_merge_while_places_are_computed_leaves_no_map_of_its_values(root, monkeypatch):
    computed = plane.neighbour_plane

    def merging(*given):
        with edited(root / "manifest.json") as manifest:
            manifest["parts"] = dict.fromkeys(manifest["parts"], "1" * 64)
        return computed(*given)

    monkeypatch.setattr(plane, "neighbour_plane", merging)
    assert (
        names_of(make(root)) == ["t-SNE", "PCA"] and command.read_kept(root, "mean_layer_6") is None
    )


def test_names_that_python_reads_as_numbers_are_names():
    texts = [f"{family}_{clade}" for family in range(1, 4) for clade in range(1, 5)]
    assert draw._packed_colour(draw.Colour("clade", texts))["names"] == sorted(texts)
    assert "values" in draw._packed_colour(draw.Colour("clade", [str(n / 2) for n in range(12)]))


def test_the_picture_is_that_of_the_library_whatever_the_threads(root):
    """Neighbours on the plane are neighbours among the vectors."""
    random = np.random.default_rng(5)
    group = random.integers(0, 6, 300)
    vectors = random.normal(0, 6, (6, 40))[group] + random.normal(0, 1, (300, 40))
    xy = plane.neighbour_plane(vectors.astype(np.float32), 0, 30)
    assert (xy == plane.neighbour_plane(vectors.astype(np.float32), 0, 30)).all()
    far = np.square(xy[:, None] - xy).sum(2) + np.diag(np.full(300, np.inf))
    assert (group[far.argmin(1)] == group).mean() > 0.99


def test_without_the_library_the_page_says_what_to_type(root, monkeypatch, capsys):
    monkeypatch.setattr(plane, "PACKAGE", "nonesuch_package")
    page = make(root)
    assert names_of(page) == ["PCA"] and not (root / "map.parquet").exists()
    line = f"pip install 'featuremill[maps]', then featuremill map {root} and featuremill report"
    assert line in page.text
    assert run_map(root) == 2
    assert "pip install 'featuremill[maps]'" in capsys.readouterr().err


def test_each_point_is_its_own_record(root):
    """Ids, descriptions and shuffled labels meet by id; nearest and places by row."""
    ids = pq.read_table(root / "embeddings.parquet")["id"].to_pylist()
    described(root, [f"protein {n} [Genus species {n % 3}]" for n in range(90)])
    order = np.random.default_rng(1).permutation(90)[:80]
    lines = [f"{ids[n]}\tkind {n}\tplace {n % 4}\t{n / 7}" for n in order]
    (root / "labels.tsv").write_text("\n".join(["id\tkind\tplace\tscore", *lines]))
    page = make(root, "--label-file", str(root / "labels.tsv"), "--label", "kind")
    colours = [colour["title"] for colour in page.map["colours"]]
    assert colours == ["kind", "length", "place", "score", "organism", "distance to the nearest"]
    lengths = pq.read_table(root / "embeddings.parquet")["length"].to_pylist()
    for n, point in enumerate(points_of(page)):
        known = n in order
        assert point["id"] == ids[n] and point["length"] == lengths[n]
        assert point["description"] == f"protein {n}"
        assert point["organism"] == f"Genus species {n % 3}"
        assert point["kind"] == (f"kind {n}" if known else None)
        assert point["place"] == (f"place {n % 4}" if known else None)
        assert point["score"] == (n / 7 if known else None)
    column = pq.read_table(root / "embeddings.parquet")["mean_layer_6"]
    vectors = np.array(column.to_pylist())
    for n, found in enumerate(nearest_of(page)):
        scores = exact_scores(vectors, vectors[[n]], "cosine")
        scores[n] = -2
        assert found.tolist() == np.argsort(-scores, kind="stable")[:5].tolist()


def test_a_label_called_like_what_the_map_has_is_named_with_its_file(root):
    ids = pq.read_table(root / "embeddings.parquet")["id"].to_pylist()
    lines = [f"{id}\t{n}\tx{n % 2}" for n, id in enumerate(ids)]
    (root / "classes.tsv").write_text("\n".join(["id\tlength\tfamily", *lines]))
    page = make(root, "--label-file", str(root / "classes.tsv"), "--label", "length")
    titles = [colour["title"] for colour in page.map["colours"]]
    assert titles == ["length (classes.tsv)", "length", "family", "distance to the nearest"]


def test_what_cannot_be_placed_or_kept_is_said(root, monkeypatch, capsys):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "delivering", full)
    assert names_of(make(root)) == ["PCA"]
    assert "No space left on device; so the map is without t-SNE." in capsys.readouterr().err
    table = pq.read_table(root / "embeddings.parquet")
    place = table.column_names.index("mean_layer_6")
    rows = table["mean_layer_6"].to_pylist()
    rows[3][0] = float("nan")
    values = pa.array(rows, table.schema.field(place).type)
    pq.write_table(table.set_column(place, "mean_layer_6", values), root / "embeddings.parquet")
    assert "mean_layer_6 has numbers that are not finite: no map." in make(root).text


def test_text_of_headers_stays_text(root):
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    described(root, [f"{hostile} [{hostile}]"] * 90)
    page = make(root)
    assert "<script>alert" not in page.source
    assert all(hostile in point["description"] for point in points_of(page))


@pytest.mark.parametrize(
    ("id", "description", "header"),
    [
        ("sp|Q8KAI9|RL15_CHLTE", SWISS, ("50S ribosomal protein L15", CHLOROBIUM, "Q8KAI9", 1)),
        ("NP_001150.3", REF, ("aldehyde oxidase, partial", "Homo sapiens", "NP_001150.3", 2)),
        ("ref|WP_000000001.1|", "x [E. coli [strain 7]]",
         ("x", "E. coli [strain 7]", "WP_000000001.1", 2)),
        ("UniRef50_Q8KAI9", "L15 n=3 Tax=Chlorobium TaxID=1 RepID=X",
         ("L15", "Chlorobium", "Q8KAI9", 1)),
        ("lcl|c_prot_AAA12345.1_7", "[gene=dnaA] [protein=DnaA]",
         ("[gene=dnaA] [protein=DnaA]", None, "AAA12345.1", 2)),
        ("gene_7", "", ("", None, "gene_7", 0)),
    ],
)  # fmt: skip
def test_headers_of_databases(id, description, header):
    (found,) = draw.headers_of([id], [description])
    assert tuple(found) == header


def test_ten_thousand_records_take_less_than_two_megabytes(tmp_path, monkeypatch):
    monkeypatch.setattr(plane, "PACKAGE", "nonesuch_package")  # it would take a minute
    root = FakeRun(ok=10_000, width=64).write(tmp_path / "big")
    random = np.random.default_rng(2)
    words = ["".join(map(chr, random.integers(97, 123, 7))) for _ in range(4_000)]
    texts = [
        f"{' '.join(words[n] for n in random.integers(0, 4_000, 6))} OS={words[n % 900]} {words[n]}"
        for n in random.integers(0, 4_000, 10_000)
    ]
    described(root, texts)
    page = make(root)
    assert len(points_of(page)) == 10_000
    assert len(page.source.encode()) < 2e6
