"""Bugs that the tests must find in maps as masks, the pets, tiles, runs of CRATE, and what untrained models decide."""

from fault import Fault

MAPS = ("tests/experiments/crate/test_attention_maps.py",)
PETS = ("tests/experiments/crate/test_pets.py",)
TILES = ("tests/report/test_tiles.py",)
RUNS = ("tests/experiments/crate/test_runs.py",)
LAYERS = ("tests/experiments/crate/test_training.py",)
SIDED = ("tests/audit/test_one_sided.py",)
AUDITED = ("tests/audit/test_run.py",)
WHERE = "experiments/crate/attention_maps.py"

MAP_FAULTS = (
    Fault("logdet: recorded in single precision", "numerics/logdet.py", "_recorded_pull(x.double(), a.double()[..., None, None])", "_recorded_pull(x, a.to(x.dtype)[..., None, None])", ("tests/numerics/test_logdet.py",)),
    Fault("logdet: small tokens refused", "numerics/logdet.py", "value.clamp_min(1))", "value)", ("tests/numerics/test_logdet.py",)),
    Fault("rates: labels of any kind", "numerics/coding_rate.py", "if labels.is_floating_point() or labels.is_complex():", "if False:", ("tests/numerics/test_coding_rate.py",)),
    Fault("rates: memberships that sum to more", "numerics/coding_rate.py", "if membership is not None and not bool(((membership", "if False and not bool(((membership", ("tests/numerics/test_coding_rate.py",)),
    Fault("rates: noise looked at under vmap", "numerics/rate_noise.py", "if torch._C._are_functorch_transforms_active():", "if False:", ("tests/numerics/test_coding_rate.py",)),
    Fault("folders: a kind that is no word", "models/native.py", "if not isinstance(name, str) or name not in KINDS:", "if name not in KINDS:", ("tests/models/test_crate.py",)),
    Fault("folders: endless steps", "models/crate_block.py", "0 < self.step < math.inf", "0 < self.step", ("tests/models/test_crate.py",)),
    Fault("page: a scale for a direction", "report/page_data.py", "grid.claim.direction is not None", "False", ("tests/report/test_browser.py",)),
    Fault("maps: another token's", WHERE, "heads.q[:, :, token, None, :]", "heads.q[:, :, 0, None, :]", MAPS),
    Fault("maps: the class token's own weight", WHERE, "weights[..., first:]", "weights[..., : y * x]", MAPS),
    Fault("maps: what a mask hides", WHERE, "scores = scores.masked_fill(~seen, -torch.inf)", "pass", MAPS),
    Fault("maps: one patch too few", WHERE, "kept = (before < mass", "kept = (share < mass", MAPS),
    Fault("maps: the palest patches", WHERE, "descending=True, stable=True", "descending=False, stable=True", MAPS),
    Fault("maps: patches turned", WHERE, "repeat_interleave(size[0] // y, dim=-2)", "repeat_interleave(size[0] // y, dim=-2).flip(-1)", MAPS),
    Fault("maps: borders count", WHERE, "keep = torch.ones_like(truth) if counted is None else counted", "keep = torch.ones_like(truth)", MAPS),
    Fault("maps: the object alone", WHERE, "share(~found, ~truth)", "share(found, truth)", MAPS),
    Fault("maps: the worst head", WHERE, "argmax())", "argmin())", MAPS),
    Fault("pets: species as breeds", "experiments/crate/pets.py", "int(fields[2]) - 1", "int(fields[1]) - 1", PETS),
    Fault("pets: border is animal", "experiments/crate/pets.py", "objects=masks == ANIMAL", "objects=masks != BACKGROUND", PETS),
    Fault("pets: names that lead outside", "experiments/crate/pets.py", "or not plain:", "or False:", PETS),
    Fault("pets: masks of any numbers", "experiments/crate/pets.py", "values.ndim != 2 or not bool", "values.ndim != 2 and not bool", PETS),
    Fault("tiles: rows turned", "report/tiles.py", "struct.pack(\">IIBBBBB\", width, height", "struct.pack(\">IIBBBBB\", height, width", TILES),
    Fault("tiles: names as they are", "report/tiles.py", "text(MARGIN, y + TILE / 2, name, kind=\"small\")", "f\"<text>{name}</text>\"", TILES),
    Fault("tiles: pale within", "report/tiles.py", "np.where(mask[..., None], pixels, pale)", "np.where(mask[..., None], pale, pixels)", TILES),
    Fault("runs: one seed for all", "experiments/crate/runs.py", "generator = torch.Generator().manual_seed(recipe.seed)", "generator = torch.Generator().manual_seed(0)", RUNS),
    Fault("runs: kept whatever the images", "experiments/crate/runs.py", "return stored if stored.get(\"run\") == run else None", "return stored", RUNS),
    Fault("runs: best head on its own images", "experiments/crate/segmentation.py", "chosen = best_head(heads[::2])", "chosen = best_head(heads[1::2])", RUNS),
    Fault("layers: measured again", "experiments/crate/training.py", "found.append(kept(run.folder.parent / MEASURED, make, settings, rooms=(\"\",)))", "found.append(make(**settings))", LAYERS),
    Fault("layers: kept whatever the images", "experiments/crate/training.py", "settings = {\"count\": count, \"seen\": of_tensors(seen)}", "settings = {\"count\": 0, \"seen\": \"\"}", LAYERS),
    Fault("untrained: one draw decides", "audit/judging.py", "finding.claim.theory in decisive and len(starts) > 1", "finding.claim.theory in decisive", SIDED),
    Fault("untrained: spread of the mean", "numerics/moments.py", "(1 + 1 / len(drawn))", "(1 / len(drawn))", SIDED),
    Fault("untrained: the head without error", "numerics/moments.py", "variance + error**2", "variance", SIDED),
    Fault("untrained: one without numbers", "audit/baseline.py", "sorted(measured_at - measured_at_start)", "sorted(measured_at - measured_at)", AUDITED),
)  # fmt: skip
