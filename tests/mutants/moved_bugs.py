"""Bugs in what was moved: records, options of an audit, accumulators, readers, registries, weights of swapped layers."""

from tests.mutants.mutant import Mutant

RECORDS = ("tests/test_records.py",)
OPTIONS = ("tests/audit/test_options.py",)
GROUPS = ("tests/theories/max_margin/test_groups.py", "tests/theories/max_margin/test_predictions.py")
STATE = ("tests/audit/test_wrong_state.py",)
STORAGE = ("tests/test_storage.py",)
MEDIA = ("tests/data/test_media.py",)
TABLES = ("tests/data/test_tables.py",)
READERS = ("tests/data/test_readers.py",)
REGISTRY = ("tests/test_registry.py",)
WEIGHTS = ("tests/swap/test_weights.py",)
DATA = ("tests/as_shipped/test_reports_are_data.py",)
DECODING = ("tests/data/test_decoding.py",)
RECIPES = ("lab/tests/training/test_recipe_file.py",)
MODELS = ("lab/tests/models/test_crate.py",)

MUTANTS = (
    Mutant("records: flags are numbers", "records:_number_or_text", "isinstance(value, bool) and kind is not bool", "False", RECORDS),
    Mutant("records: numbers that are not finite", "records:_plain", "not math.isfinite(value)", "False", RECORDS),
    Mutant("records: numbers of any length", "records:_plain", "not -MAX_WHOLE <= value < MAX_WHOLE", "False", RECORDS),
    Mutant("records: the largest number is one more", "records:_plain", "not -MAX_WHOLE <= value < MAX_WHOLE", "not -MAX_WHOLE <= value <= MAX_WHOLE", RECORDS),
    Mutant("records: numbers inside plain values are not checked", "records:_plain", "value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()", "()", RECORDS),
    Mutant("records: unknown keys", "records:_fields", "[name for name in value if name not in known]", "[]", RECORDS),
    Mutant("records: missing keys", "records:_fields", "needed if defaults else known", "()", RECORDS),
    Mutant("records: defaults without permission", "records:_fields", "needed if defaults else known", "needed", RECORDS),
    Mutant("records: pairs of any length", "records:_entries", "fixed and len(value) != len(parts)", "False", RECORDS),
    Mutant("records: text is a list of letters", "records:_entries", "not isinstance(value, list | tuple)", "not isinstance(value, list | tuple | str)", RECORDS),
    Mutant("records: a choice that equals another type", "records:_read", "value == choice and type(value) is type(choice)", "value == choice", RECORDS),
    Mutant("records: the first type of a union only", "records:_one_of", "others[:-1]", "()", RECORDS),
    Mutant("records: a class's own checks escape", "records:_fields", "raise _MisfitError(str(error)) from None", "raise", RECORDS),
    Mutant("records: NaN ends the check of what was made", "records:check_fields", "continue", "break", RECORDS),
    Mutant("records: what was made is not checked", "records:check_fields", "_read(hints[name], getattr(made, name), name, False)", "pass", RECORDS),
    Mutant("state: parts are not checked", "checkpoint:read_part", "check_fields(record, path, remedy=REMEDY)", "pass", STATE),
    Mutant("state: dataclasses are not checked", "state_file:read_state", "check_fields(known[value[_OBJECT]](**unpack(value['fields'])), path, remedy=REMEDY)", "known[value[_OBJECT]](**unpack(value['fields']))", STATE),
    Mutant("state: seconds of any theories", "checkpoint:read_part", "part.seconds.keys() != {theory.title for theory in find_theories(part.options['theories'])}", "False", STATE),
    Mutant("state: goes on after any batch", "checkpoint:read_part", "0 <= each.next_batch <= len(part.sizes)", "True", STATE),
    Mutant("state: text for a tuple", "state_file:read_state", "not isinstance(entries, list)", "False", STATE),
    Mutant("storage: lists of checksums of anything", "storage:check_checksums", "not (isinstance(name, str) and isinstance(expected, str) and name.isprintable())", "False", STORAGE),
    Mutant("storage: tensors of any header", "storage:read_tensors", "(KeyError, TypeError, SafetensorError)", "ZeroDivisionError", STORAGE),
    Mutant("options: a limit is left out", "options:from_plain", "numbered and (not (told['least'] or 0) <= value <= told['most'])", "False", DATA),
    Mutant("options: flags are numbers", "options:_is", "isinstance(value, int) and (not isinstance(value, bool))", "isinstance(value, int)", DATA),
    Mutant("options: lists of anything", "options:_is", "isinstance(value, list) and all((isinstance(entry, str) for entry in value))", "isinstance(value, list)", DATA),
    Mutant("options: older manifests lack options", "options:from_plain", "told['in_commands'] if told['added'] else dataclasses.MISSING", "dataclasses.MISSING", DATA),
    Mutant("options: no layers are all", "options:AuditOptions.__post_init__", "self.layers is not None and (not self.layers)", "False", OPTIONS),
    Mutant("options: a changed option loses the others", "options:AuditOptions.changed", "{**{entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}, **values}", "{**values}", OPTIONS),
    Mutant("groups: reasons are said twice", "groups:Groups.merge", "[reason for reason in other._reasons if reason not in self._reasons]", "list(other._reasons)", GROUPS),
    Mutant("groups: merged ones are lost", "groups:Groups.merge", "self.groups += other.groups", "pass", GROUPS),
    Mutant("groups: kept ones are lost in a merge", "groups:Groups.merge", "self.kept |= other.kept", "pass", GROUPS),
    Mutant("groups: restored ones begin again", "groups:Groups.restore", "self.groups = state['groups']", "pass", GROUPS),
    Mutant("sound: any rate", "media:read_audio", "not MIN_RATE <= own <= MAX_RATE", "False", MEDIA),
    Mutant("sound: any length at the model's rate", "media:read_audio", "len(samples) * rate > MAX_SAMPLES * own", "False", MEDIA),
    Mutant("sound: any width", "media:_read_wav", "width not in (*_PCM, 3)", "False", MEDIA),
    Mutant("images: any number of pixels", "decoding:open_image", "image.width * image.height > MAX_PIXELS", "False", DECODING),
    Mutant("tables: any number of rows", "parquet:column_values", "rows > MAX_ROWS or size > MAX_INPUT_BYTES", "size > MAX_INPUT_BYTES", TABLES),
    Mutant("tables: texts of any size", "parquet:column_values", "rows > MAX_ROWS or size > MAX_INPUT_BYTES", "rows > MAX_ROWS", TABLES),
    Mutant("tables: a dataset names any file", "tables:_dataset", "Path(str(entry['filename'])).name", "str(entry['filename'])", TABLES),
    Mutant("readers: another kind's endings", "readers:endings", "reader.kind == kind", "True", READERS),
    Mutant("reports: pipes of the manifest", "confirmed:confirm", "_require_regular(typed.option(name), Path(value))", "pass", DATA),
    Mutant("reports: results into the report", "confirmed:require_other_folder", "out.resolve() == inside", "False", DATA),
    Mutant("reports: any model is harmless", "confirmed:_is_harmless", "value in DEMOS", "bool(value)", DATA),
    Mutant("models: flags for sizes", "transformer_block:config_from_json", "check_fields(kind(**settings), 'the config', remedy='correct it')", "kind(**settings)", MODELS),
    Mutant("general: NaN of keys that nobody sees", "general:_divide_by_count", "torch.where(count > 0, out, 0)", "out", ("tests/operators/test_not_finite.py",)),
    Mutant("weights: an operator without any has zeros", "operator:_no_weights", "torch.nan", "0.0", WEIGHTS),
    Mutant("weights: gradients do not flow through them", "operator:_with_weights", "out.detach() + (mean - mean.detach())", "out", WEIGHTS),
)  # fmt: skip
