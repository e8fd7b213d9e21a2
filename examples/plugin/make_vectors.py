"""Make vectors/ from texts.csv: words that stand in the same texts get similar vectors."""

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np

from featuremill_terms import WORD

DIMENSIONS = 8
HERE = Path(__file__).parent
SEEN_AT_LEAST = 2

with (HERE / "texts.csv").open(encoding="utf-8") as file:
    texts = [set(WORD.findall(row["text"].lower())) for row in csv.DictReader(file)]
counts = Counter(word for text in texts for word in text)
words = sorted(word for word, count in counts.items() if count >= SEEN_AT_LEAST)
is_in_text = np.array([[word in text for text in texts] for word in words], float)
left, sizes, _ = np.linalg.svd(is_in_text - is_in_text.mean(0), full_matrices=False)
vectors = left[:, :DIMENSIONS] * sizes[:DIMENSIONS]
vectors *= np.sign(vectors[np.abs(vectors).argmax(0), range(DIMENSIONS)])  # SVD leaves it open

folder = HERE / "vectors"
folder.mkdir(exist_ok=True)
(folder / "config.json").write_text(json.dumps({"dimensions": DIMENSIONS}) + "\n")
with (folder / "vectors.tsv").open("w", encoding="utf-8") as file:
    for word, vector in zip(words, vectors, strict=True):
        file.write("\t".join([word, *(f"{number:.4f}" for number in vector)]) + "\n")
