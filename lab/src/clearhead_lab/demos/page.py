"""Demonstrations of theories: pages to explore, each one file that needs no network."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from clearhead.errors import InputError
from clearhead.report.html import page_file, page_policy, page_template


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """The words of a demonstration; its mathematics and drawing are a script with its name.

    facts: the id and the label of every number that the script writes
    theory: the theory on the command line
    """

    title: str
    lead: str
    facts: tuple[tuple[str, str], ...]
    shown: str
    formula: Markup
    suggestions: tuple[str, ...]
    source: str
    theory: str


DEMOS: Mapping[str, Demo] = {
    "kernel-pca": Demo(
        title="Attention as kernel PCA",
        lead="Drag the keys. Attention with the right values projects every query on a principal axis of the keys.",
        facts=(("share", "variance on this axis"), ("difference", "attention minus projection, relative")),
        shown="Dots are keys. The colour at a point is what attention returns for a query there, with the theorem's "
        "values: the projection of the query on the chosen principal axis of the keys, in the feature space of "
        "the softmax kernel. Blue is positive, orange negative. The bars are the variance of the keys on each axis.",
        formula=Markup(
            "h<sub>d</sub>(q) = Σ<sub>j</sub> softmax<sub>j</sub>(s q·k<sub>j</sub>) v<sub>dj</sub> = "
            "⟨φ(q), u<sub>d</sub>⟩ with v<sub>dj</sub> = (a<sub>dj</sub> − mean a<sub>d</sub>) / g(k<sub>j</sub>)"
        ),
        suggestions=(
            "Make two clusters of keys: the first axis tells them apart.",
            "Put all keys in one place: the variance vanishes, and the axes mean nothing.",
            "Raise the scale: attention becomes sharper, and the variance spreads over more axes.",
            "The difference stays at rounding level whatever you do. That is a theorem. Whether a trained model has "
            "learned such values is another question.",
        ),
        source="Teo and Nguyen 2024 (arXiv 2406.13762), theorem 1.",
        theory="kernel-pca",
    ),
    "max-margin": Demo(
        title="Attention as a support vector machine",
        lead="Move the slider. Gradient descent turns attention towards the direction that separates the best tokens.",
        facts=(
            ("cosine", "cosine to the support vector machine"),
            ("margin", "its margin"),
            ("weight", "smallest attention on a best token"),
        ),
        shown="Each colour is a sequence of four tokens in the plane, and a dot is as large as the attention that its "
        "token gets. Rings mark the tokens of highest score. The blue line is the direction that gradient descent has "
        "reached, the dashed line that of the support vector machine. Dashed rings mark the tokens on its margin.",
        formula=Markup("p<sup>mm</sup> = argmin ‖p‖ subject to (best token − other token)·p ≥ 1 in every sequence"),
        suggestions=(
            "Move the slider to the right: attention saturates long before the direction has settled.",
            "Drag a token on the margin: the dashed line follows. Drag one far from it: nothing changes.",
            "Drag a token beyond the best one of its sequence: another token is the best.",
            "Make a choice that no direction can select.",
        ),
        source="Tarzanagh et al. 2023 (arXiv 2308.16898, 2306.13596). Normalised gradient descent, logistic loss.",
        theory="max-margin",
    ),
    "coding-rate": Demo(
        title="The coding rate as a volume",
        lead="Drag the points. The coding rate is the volume that they need, counted in balls of the allowed error.",
        facts=(
            ("rate", "rate of all points"),
            ("volume", "area of the grey ellipse, in error balls"),
            ("reduction", "rate reduction ΔR"),
        ),
        shown="The small disc is the error that coding may make. The grey ellipse is the spread of all points (their "
        "second moments) with the error added, and its area is e to the power R times that of the disc. The coloured "
        "ellipses are those of the classes. The rate reduction is what knowing the classes saves.",
        formula=Markup(
            "R(Z) = ½ log det(I + d/(nε²) Z<sup>T</sup>Z), ΔR = R(Z) − Σ<sub>k</sub> (n<sub>k</sub>/n) R(Z<sub>k</sub>)"
        ),
        suggestions=(
            "Compress each class to a line: the rates of the classes fall, and ΔR rises as long as the lines differ.",
            "Put both classes on the same line: knowing the class saves nothing.",
            "Move all points outward: R grows, although the shape is the same. Rates are compared at equal size only.",
            "Raise the error: the volume falls.",
        ),
        source="Yu et al. 2020 (arXiv 2006.08558), Yu et al. 2023 (arXiv 2306.01129).",
        theory="coding-rate",
    ),
    "symmetry": Demo(
        title="Attention does not see order",
        lead="Drag the tokens into another order. What happens to three outputs?",
        facts=(
            ("error-attention", "self-attention: error of equivariance"),
            ("error-learned", "learned query: error of invariance"),
            ("error-convolved", "convolution: error of equivariance"),
            ("codes", "position codes"),
        ),
        shown="Each card is a vector of two numbers. Self-attention permutes its outputs with the tokens (colours show "
        "which output belongs to which token). Attention with a learned query has one output, which does not change. A "
        "convolution looks at neighbours, so it does neither. Errors compare with the outputs for the first order.",
        formula=Markup("A(PX) = P A(X), a(PX) = a(X) for every permutation P"),
        suggestions=(
            "Reverse the order, or drag a token to another place.",
            "Add position codes: attention is the same, but tokens now differ by place, and both symmetries break.",
            "Move a token and back again: every error returns to zero.",
        ),
        source="Ji and Xie, A Mathematical View of Attention Models in Deep Learning, theorem 1.",
        theory="symmetry",
    ),
}


def render_demo(name: str) -> str:
    """Return a demonstration as the text of an HTML file, with the same content security policy as a report."""
    if name not in DEMOS:
        raise InputError(f"there is no demonstration {name!r}; there are {', '.join(DEMOS)}")
    style = f"\n{page_file('demo.css', __package__)}"
    script = f"\n{page_file('common.js', __package__)}\n{page_file(f'{name}.js', __package__)}"
    return page_template("demo.html.j2", __package__).render(
        demo=DEMOS[name],
        style=Markup(style),
        script=Markup(script),
        policy=page_policy(script=script, style=style),
    )


def list_demos() -> str:
    """Return one line per demonstration."""
    width = max(map(len, DEMOS))
    return "\n".join(f"{name:{width}}  {demo.title}" for name, demo in DEMOS.items())


def write_demo(name: str, out: Path | None) -> str:
    """Write a demonstration and return its path."""
    page = render_demo(name)
    path = Path(f"clearhead-{name}.html") if out is None else out
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another path with --out") from None
    return str(path)
