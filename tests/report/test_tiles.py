"""Images in a picture: that a PNG holds what it was given, and where the tiles stand."""

import io
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from clearhead.report.tiles import heat, masked, png, tile_picture


def test_a_png_holds_its_pixels() -> None:
    image_reader = pytest.importorskip("PIL.Image", reason="pillow reads the file back")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    read = np.asarray(image_reader.open(io.BytesIO(png(pixels))))
    assert np.array_equal(read, pixels)


def test_the_most_is_the_darkest_and_a_map_of_nothing_is_pale() -> None:
    colours = heat(np.array([[0.0, 0.2], [0.4, 0.1]])).astype(int).sum(axis=-1)
    assert colours[1, 0] == colours.min()
    assert colours[0, 0] == colours.max()
    assert (heat(np.zeros((2, 2))) == heat(np.array([[0.0, 1.0]]))[0, 0]).all()


def test_outside_the_mask_an_image_is_pale() -> None:
    pixels = np.full((1, 2, 3), 40, dtype=np.uint8)
    assert masked(pixels, np.array([[True, False]]))[0].tolist() == [[40] * 3, [201] * 3]


def test_tiles_stand_in_rows_and_names_are_escaped() -> None:
    tile = np.zeros((2, 2, 3), dtype=np.uint8)
    drawn = tile_picture([("<a>", [tile, tile]), ("b", [tile, tile])], columns=["x", "y & z"], title="T")
    tree = ElementTree.fromstring(drawn)
    places = [(node.get("x"), node.get("y")) for node in tree.iter("{http://www.w3.org/2000/svg}image")]
    assert len(set(places)) == 4
    assert "<a>" not in drawn
    assert len(re.findall("data:image/png;base64,", drawn)) == 4
    with pytest.raises(ValueError, match="2 images in every row"):
        tile_picture([("a", [tile])], columns=["x", "y"], title="T")
