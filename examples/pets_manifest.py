"""Write the table of `cat-dog-pets.toml` from the official lists of Oxford-IIIT Pets.

python examples/pets_manifest.py PETS_FOLDER MANIFEST.csv
"""

import csv
import sys
from pathlib import Path

SPECIES = {"1": "cat", "2": "dog"}


def rows(annotations: Path) -> list[tuple[str, str, str, str]]:
    """Path, species, breed and split of every image; train and val are the authors' halves of trainval."""
    table = []
    for split in ("train", "val", "test"):
        for line in (annotations / f"{split}.txt").read_text(encoding="utf-8").splitlines():
            if not line.startswith("#"):
                name, _, species, _ = line.split()
                table.append((f"images/{name}.jpg", SPECIES[species], name.rpartition("_")[0], split))
    return table


def main() -> None:
    pets, manifest = Path(sys.argv[1]), Path(sys.argv[2])
    with manifest.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("path", "species", "breed", "split"))
        writer.writerows(rows(pets / "annotations"))
    print(f"wrote {manifest}")


if __name__ == "__main__":
    main()
