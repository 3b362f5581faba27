"""Points, paths and directions in the plane, as figures of the attention SVM show them."""

from collections.abc import Iterable

import numpy as np

from clearhead.report.plots import COLOURS, Values
from clearhead_lab.experiments.experiment import Axes

__all__ = ["plot_plane"]

WIDE = 1.4
"""The width of a plane relative to its height."""


def plot_plane(
    axes: Axes,
    *,
    filled: Iterable[tuple[Values, int, str]] = (),
    hollow: Iterable[tuple[Values, int, str]] = (),
    paths: Iterable[tuple[Values, int, str]] = (),
    rays: Iterable[tuple[Values, int, str]] = (),
) -> None:
    """Plot points (n, 2), paths (n, 2) and directions (2,) around the origin, both axes on one scale.

    Each item comes with its colour and its label in the legend.
    """
    filled, hollow, paths = list(filled), list(hollow), list(paths)
    groups = [points for points, _, _ in (*filled, *hollow, *paths)]
    reach = 1.12 * max((float(np.abs(points / (WIDE, 1.0)).max()) for points in groups), default=1.0)
    for towards, colour, label in rays:
        end = 2 * WIDE * reach * towards / (np.linalg.norm(towards) or 1.0)
        axes.plot(*zip((0, 0), end, strict=True), color=COLOURS[colour], linestyle=":", linewidth=1.3, label=label)
    for points, colour, label in paths:
        axes.plot(*points.T, color=COLOURS[colour], linewidth=1.8, label=label)
    for points, colour, label in hollow:
        axes.scatter(
            points[:, 0], points[:, 1], s=36, facecolors="white", edgecolors=COLOURS[colour], zorder=3, label=label
        )
    for points, colour, label in filled:
        axes.scatter(points[:, 0], points[:, 1], s=36, color=COLOURS[colour], zorder=3, label=label)
    axes.set_aspect("equal", adjustable="box")
    axes.set_xlim(-WIDE * reach, WIDE * reach)
    axes.set_ylim(-reach, reach)
