"""Sentences as vectors: a manifest with a list column, for `surefoot run experiment.toml`.

    pip download vaderSentiment==3.3.2 --no-deps --no-binary :all:
    python embed_sentences.py vaderSentiment-3.3.2.tar.gz -o data/

The package's source archive contains the sentences of Hutto & Gilbert, "VADER: A Parsimonious Rule-based
Model for Sentiment Analysis of Social Media Text", ICWSM 2014, rated by twenty people from -4 to 4: movie
reviews, product reviews, newspaper editorials and tweets. A sentence is positive or negative from a rating of
0.5 on; those between have no label, and are the unlabelled data.

The vectors are TF-IDF weights of words and pairs of words, reduced to 128 numbers by a singular value
decomposition, both fitted on the training sentences alone. `--encoder NAME` uses a model of
sentence-transformers instead, if that is installed and the model is here or can be downloaded.
"""

import argparse
import io
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

SOURCES = {
    "movies": "movieReviewSnippets",
    "products": "amazonReviewSnippets",
    "editorials": "nytEditorialSnippets",
    "tweets": "tweets",
}
FAMILIAR = ("movies", "products")
NEUTRAL = 0.5  # ratings below have no label
DIMENSIONS = 128


def read_sentences(archive):
    """A mapping per sentence, from the archive inside the package's archive."""
    with tarfile.open(archive) as package:
        name = next(name for name in package.getnames() if name.endswith("hutto_ICWSM_2014.tar.gz"))
        inner = io.BytesIO(package.extractfile(name).read())
    sentences = []
    with tarfile.open(fileobj=inner) as data:
        for source, name in SOURCES.items():
            text = data.extractfile(f"hutto_ICWSM_2014/{name}_GroundTruth.txt").read()
            for line in text.decode("utf-8", errors="replace").splitlines():
                number, rating, sentence = line.split("\t", 2)
                document = f"{source}-{number.partition('_')[0]}"
                sentences.append(
                    {
                        "id": f"{source}-{number}",
                        "source": source,
                        "document": document,
                        "split": split_of(document) if source in FAMILIAR else "test",
                        "rating": float(rating),
                        "text": sentence.strip(),
                    }
                )
    return sentences


def split_of(document):
    """Sentences of one review stay together: a number from its name decides."""
    share = zlib.crc32(document.encode()) % 100
    return "train" if share < 50 else "val" if share < 70 else "test"


def tfidf_vectors(texts, training):
    """TF-IDF and a singular value decomposition, fitted on the training texts."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    weights = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    seen = [text for text, is_training in zip(texts, training, strict=True) if is_training]
    size = min(DIMENSIONS, weights.fit_transform(seen).shape[1] - 1)
    encoder = make_pipeline(weights, TruncatedSVD(size, random_state=0), StandardScaler()).fit(seen)
    return encoder.transform(texts)


def encoder_vectors(texts, name):
    """The vectors of a model of sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(name).encode(texts, show_progress_bar=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("archive", type=Path, help="vaderSentiment-3.3.2.tar.gz")
    parser.add_argument("-o", "--output", type=Path, required=True, help="a folder")
    parser.add_argument("--encoder", help="a model of sentence-transformers, such as all-MiniLM-L6-v2")
    chosen = parser.parse_args()
    sentences = read_sentences(chosen.archive)
    texts = [each["text"] for each in sentences]
    training = [each["split"] == "train" for each in sentences]
    vectors = encoder_vectors(texts, chosen.encoder) if chosen.encoder else tfidf_vectors(texts, training)
    table = pa.Table.from_pylist(sentences)
    table = table.append_column("embedding", pa.array(list(np.asarray(vectors, np.float32))))
    ratings = table["rating"].to_numpy()
    labels = np.where(ratings > 0, "positive", "negative")
    labelled = np.abs(ratings) >= NEUTRAL
    with_labels = table.append_column("label", pa.array(labels)).filter(pa.array(labelled))
    neutral = table.select(["id", "embedding"]).filter(pa.array(np.asarray(training) & ~labelled))
    chosen.output.mkdir(parents=True, exist_ok=True)
    for name, rows in (("sentences", with_labels), ("neutral", neutral)):
        path = chosen.output / f"{name}.parquet"
        pyarrow.parquet.write_table(rows, path)
        print(f"{path}: {rows.num_rows:,} sentences, {len(rows['embedding'][0])} numbers each")


if __name__ == "__main__":
    main()
