"""Example configurations that are installed with the package."""

from pathlib import Path

PLACES = (Path(__file__).parents[1], Path(__file__).parents[4])  # an installed wheel, a clone of the repository


def find_recipe(path: Path) -> Path:
    """Return `path`, or if it does not exist and begins with "recipes/", the recipe of that name in the package."""
    if path.parts[:1] == ("recipes",) and not path.exists():
        return next((place / path for place in PLACES if (place / path).is_file()), path)
    return path
