"""The colour scale of agreement: orange away from the theory, neutral at the control, blue at the theory.

Orange and blue can be distinguished under every common colour blindness, and lightness alone orders each side. There is
one scale for light pages (and for terminals, where the colour of the number is set with it) and one for dark pages.
"""

from dataclasses import dataclass

RGB = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Colours at agreements -1, -1/2, 0, 1/2 and 1, with linear interpolation between and constant outside."""

    stops: tuple[RGB, RGB, RGB, RGB, RGB]

    def rgb(self, agreement: float) -> RGB:
        """Return the colour of an agreement, rounded to the two decimals that are printed."""
        scaled = (min(max(round(agreement, 2), -1.0), 1.0) + 1) * 2
        left = min(int(scaled), 3)
        weight = scaled - left
        low, high = self.stops[left], self.stops[left + 1]
        red, green, blue = (round(a + (b - a) * weight) for a, b in zip(low, high, strict=True))
        return red, green, blue

    def fill(self, agreement: float) -> str:
        """Return the colour of an agreement as #rrggbb."""
        return as_hex(self.rgb(agreement))

    def ink(self, agreement: float) -> str:
        """Return black or white, whichever has more contrast with the fill; the contrast is always at least 4.5."""
        fill = luminance(self.rgb(agreement))
        return "#ffffff" if 1.05 / (fill + 0.05) > (fill + 0.05) / 0.05 else "#000000"


def as_hex(colour: RGB) -> str:
    """Return a colour as #rrggbb."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def luminance(colour: RGB) -> float:
    """Return the relative luminance, 0 for black to 1 for white (WCAG 2.2)."""
    red, green, blue = (c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


LIGHT = Scale(stops=((138, 69, 0), (226, 148, 66), (243, 242, 238), (107, 164, 216), (11, 60, 125)))
DARK = Scale(stops=((255, 196, 128), (176, 104, 36), (44, 48, 56), (44, 108, 176), (164, 212, 255)))
