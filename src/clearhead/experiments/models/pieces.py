"""Text as pieces by scores, as SentencePiece's byte-pair models have it (Kudo and Richardson 2018)."""

from collections.abc import Sequence

__all__ = ["split_into_pieces"]


def split_into_pieces(text: str, pieces: Sequence[str], scores: Sequence[float]) -> list[int]:
    """The places of a text's pieces, behind the opening piece 1.

    The text gets a space in front and is taken character by character; then the two neighbours whose union is the piece
    of the largest score are joined, the first such, until none are. A character that is no piece becomes its bytes,
    pieces of the form <0x2A>.
    """
    places = {piece: i for i, piece in enumerate(pieces)}
    found: list[int] = []
    for character in f" {text}":
        if character in places:
            found.append(places[character])
        else:
            found += [places[f"<0x{byte:02X}>"] for byte in character.encode()]
    while True:
        unions = [
            (-scores[places[union]], i)
            for i in range(len(found) - 1)
            if (union := pieces[found[i]] + pieces[found[i + 1]]) in places
        ]
        if not unions:
            return [1, *found]
        _, i = min(unions)
        found[i : i + 2] = [places[pieces[found[i]] + pieces[found[i + 1]]]]
