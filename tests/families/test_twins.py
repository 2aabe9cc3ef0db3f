"""Every row of twins.json: stock transformers loads both sides of a conversion, and gives the same logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig

from ropetool import convert, detect, extend, verify
from ropetool.errors import ConfigConflictError, ConfigError, TwinError
from ropetool.families.methods import Method
from ropetool.families.reading import read_model
from ropetool.families.table import TABLE
from ropetool.families.twin_rows import CLASS_FACTS, TWIN_ROWS, TwinRow, meant, twin_row, twin_rows
from ropetool.families.twins import CACHE_READS, SAME, TWIN_OF, choose_twin, tokenizer_warnings, twin_config
from ropetool.models.meaning import config_fault
from ropetool.models.run import live_config
from ropetool.rope.pairing import Pairing
from tests import tiny
from tests.tiny import digest, edit_json, read_json

NAMES = [f"{row.source}-{row.target}" for row in TWIN_ROWS]
# Unlike the default of any class.
UNUSUAL = {"rms_norm_eps": 3e-3, "rope_parameters": {"rope_type": "default", "rope_theta": 777.0}, "hidden_act": "gelu"}
ALLOWED = 1e-5


def values_of(row: TwinRow, case: int = 0, **changes: Any) -> dict[str, Any]:
    """What the config of a tiny model of the row's source says."""
    head_dim, layers = tiny.COMMON["head_dim"], tiny.COMMON["num_hidden_layers"]
    required = {key: meant(spec, head_dim, layers) for key, spec in row.required.items()}
    hidden = {"hidden_size": 128 if row.square else 96}
    return {**tiny.COMMON, **hidden, **required, **row.cases[case][0], **changes}


def config_of(row: TwinRow, **changes: Any) -> dict[str, Any]:
    """A config.json of the row's source, as a dictionary."""
    rope = {"rope_parameters": UNUSUAL["rope_parameters"]}
    return {"model_type": row.source, **rope, **values_of(row), **changes}


def saved(row: TwinRow, directory: Path, case: int = 0, **changes: Any) -> Path:
    """A tiny checkpoint of the row's source."""
    return tiny.save(tiny.random_model(AutoConfig.for_model(row.source, **values_of(row, case, **changes))), directory)


def converted(source: Path, destination: Path, row: TwinRow, written_as: str | None = None) -> convert.Converted:
    return convert.apply(convert.plan(source, destination, TABLE[row.target].pairing, None, written_as))


def apart(a: Path, b: Path) -> float:
    """How far two checkpoints are apart as plain transformers loads them, in standard deviations of the logits."""
    first, second = tiny.logits(tiny.load(a)), tiny.logits(tiny.load(b))
    return float((first - second).abs().max() / first.std())


def test_there_are_rows_in_both_directions() -> None:
    pairs = {(row.source, row.target) for row in TWIN_ROWS}
    assert {("llama", "ernie4_5"), ("helium", "llama"), ("mistral", "ernie4_5"), ("qwen2", "helium")} <= pairs
    assert {(target, source) for source, target in pairs} == pairs
    assert all(TABLE[row.source].pairing is TABLE[row.target].pairing.other for row in TWIN_ROWS)
    assert all(TABLE[row.source].twins == tuple(r.target for r in twin_rows(row.source)) for row in TWIN_ROWS)


@pytest.mark.parametrize("row", TWIN_ROWS, ids=NAMES)
def test_stock_transformers_gives_the_same_logits_in_every_case(row: TwinRow, tmp_path: Path) -> None:
    for case in range(len(row.cases)):
        source = saved(row, tmp_path / f"source{case}", case, **UNUSUAL)
        there = tmp_path / f"there{case}"
        result = converted(source, there, row, row.target)
        assert result.model_type == result.written_as == row.target
        config = read_json(there / "config.json")
        assert config["architectures"] == [CLASS_FACTS[row.target].architecture]
        assert tiny.load(there).config.model_type == row.target
        assert apart(source, there) < ALLOWED
    (there / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    assert apart(source, there) > 0.1, "the comparison proves something only if rows that did not move fail it"


@pytest.mark.parametrize("row", TWIN_ROWS, ids=NAMES)
def test_what_the_source_class_fills_in_is_written_out(row: TwinRow, tmp_path: Path) -> None:
    """A config that leaves to its class whatever it can; the twin's class would fill in other values."""
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    kept = {key: value for key, value in values_of(row).items() if key in (*sizes, *row.required, *row.cases[0][0])}
    keys = {"num_key_value_heads": 8, "head_dim": 16, "pad_token_id": 0}
    scaled = "scaled_rope" in TABLE[row.source].defaults
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}} if scaled else {}
    source = tiny.save(
        tiny.random_model(AutoConfig.for_model(row.source, **{**kept, **keys, **rope, "hidden_size": 128})),
        tmp_path / "source",
    )
    saved_config = read_json(source / "config.json")
    defaults = CLASS_FACTS[row.source].fields
    silent = [k for k, v in saved_config.items() if k in defaults and v == defaults[k] and k not in sizes]
    silent += [] if scaled else ["rope_parameters"]
    edit_json(source / "config.json", *silent)
    assert "rms_norm_eps" not in read_json(source / "config.json")
    there = tmp_path / "there"
    converted(source, there, row, row.target)
    assert apart(source, there) < ALLOWED
    written, live = live_config(there), live_config(source)
    shared = set(defaults) & set(CLASS_FACTS[row.target].fields)
    assert len(shared) > 10
    assert {k: written[k] for k in shared} == {k: live[k] for k in shared}


@pytest.mark.parametrize("row", TWIN_ROWS, ids=NAMES)
def test_the_way_back_gives_the_type_the_bytes_and_the_meaning(row: TwinRow, tmp_path: Path) -> None:
    source = saved(row, tmp_path / "source", **UNUSUAL)
    converted(source, tmp_path / "there", row, row.target)
    back = tmp_path / "back"
    result = convert.apply(convert.plan(tmp_path / "there", back, TABLE[row.source].pairing))
    assert result.written_as == row.source
    assert digest(back / "model.safetensors") == digest(source / "model.safetensors")
    configs = read_json(source / "config.json"), read_json(back / "config.json")
    assert config_fault((source, back), configs, read_model(configs[0]), read_model(configs[1])) is None
    assert read_model(configs[0]).rotations[0].scaling == read_model(configs[1]).rotations[0].scaling


BESIDE = {"attention_dropout": 0.1, "pretraining_tp": 2, "max_window_layers": 7, "a_note": [1, {"b": None}]}


def there_and(back: dict[str, Any], source: dict[str, Any], row: TwinRow) -> dict[str, Any]:
    """``source`` written for the twin, changed by ``back``, and written for its own type again."""
    there, _ = twin_config(source, read_model(source), row)
    there = json.loads(json.dumps({**there, **back}))
    return twin_config(there, read_model(there), twin_row(row.target, row.source))[0]


@pytest.mark.parametrize("row", TWIN_ROWS, ids=NAMES)
def test_the_way_back_gives_the_very_config_but_for_the_marker(row: TwinRow) -> None:
    source = config_of(row, **BESIDE)
    again = there_and({}, source, row)
    assert again.pop("ropetool") == {"twin_of": row.target}
    assert json.dumps(again) == json.dumps(source)
    marked = {**source, "ropetool": {"pairing": "half", "extension": {}}}
    assert there_and({}, marked, row)["ropetool"] == {**marked["ropetool"], "twin_of": row.target}


@pytest.mark.parametrize("row", TWIN_ROWS, ids=NAMES)
def test_what_was_changed_since_is_kept_on_the_way_back(row: TwinRow) -> None:
    source = config_of(row, **BESIDE)
    for change in ({"rms_norm_eps": 0.5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}):
        again = there_and(change, source, row)
        assert {key: again[key] for key in change} == change
        assert again["model_type"] == row.source


@pytest.mark.parametrize(
    "kept", [None, 7, [], {}, {"model_type": "llama"}, {**UNUSUAL, "model_type": "mixtral"}], ids=str
)
def test_a_marker_that_keeps_no_config_is_not_followed(kept: object) -> None:
    row = twin_row("llama", "ernie4_5")
    source = config_of(row)
    again = there_and({"ropetool": {"twin_of": "llama", "config_before": kept}}, source, row)
    assert read_model(again).geometry == read_model(source).geometry
    assert again["rms_norm_eps"] == CLASS_FACTS["llama"].fields["rms_norm_eps"]


SCALED = {
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 500.0},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16, "rope_theta": 500.0,
    },
}  # fmt: skip


@pytest.mark.parametrize("style", ["v4", "v5"])
@pytest.mark.parametrize("method", SCALED)
def test_a_scaled_model_and_tied_embeddings(method: str, style: str, tmp_path: Path) -> None:
    row = TWIN_ROWS[NAMES.index("llama-ernie4_5")]
    source = saved(row, tmp_path / "source", rope_parameters=SCALED[method], tie_word_embeddings=True)
    if style == "v4":
        block = {key: value for key, value in SCALED[method].items() if key != "rope_theta"}
        edit_json(source / "config.json", "rope_parameters", rope_scaling=block, rope_theta=500.0)
    converted(source, tmp_path / "there", row)
    assert apart(source, tmp_path / "there") < ALLOWED


# --- which class it is written for ----------------------------------------------------------------------------------


def choose(config: dict[str, Any], to: str, wanted: str | None = None):
    return choose_twin(config, read_model(config), Pairing(to), wanted)


LLAMA = config_of(TWIN_ROWS[NAMES.index("llama-ernie4_5")])
ERNIE = config_of(TWIN_ROWS[NAMES.index("ernie4_5-llama")])


def test_a_twin_is_taken_by_default_and_same_keeps_the_type() -> None:
    assert choose(LLAMA, "interleaved").model_type == "ernie4_5"
    assert choose(ERNIE, "half").model_type == "llama"
    assert choose(LLAMA, "interleaved", SAME).config is None
    assert choose(LLAMA, "interleaved", "llama").config is None
    square = {**LLAMA, "hidden_size": 128}
    assert choose(square, "interleaved", "helium").model_type == "helium"


def test_the_type_that_it_was_written_from_comes_first() -> None:
    config = {**ERNIE, "ropetool": {"pairing": "interleaved", TWIN_OF: "mistral"}}
    choice = choose(config, "half")
    assert choice.model_type == "mistral"
    assert choice.config["sliding_window"] is None
    assert choice.config["ropetool"][TWIN_OF] == "ernie4_5"
    damaged = {**ERNIE, "ropetool": {"pairing": "interleaved", TWIN_OF: ["no", "type"]}}
    assert choose(damaged, "half").model_type == "llama"


def test_a_class_that_rotates_the_wanted_layout_itself_needs_none() -> None:
    away = {**LLAMA, "ropetool": {"pairing": "interleaved"}}
    assert choose(away, "half").config is None
    with pytest.raises(TwinError, match="the class of llama rotates half itself"):
        choose(away, "half", "ernie4_5")


def test_a_type_that_is_no_twin_is_refused_with_those_that_are() -> None:
    with pytest.raises(TwinError, match="qwen3 is no twin of llama; its twins are ernie4_5, helium"):
        choose(LLAMA, "interleaved", "qwen3")
    with pytest.raises(TwinError, match="no class is known"):
        choose({**LLAMA, "model_type": "gemma"}, "interleaved", "ernie4_5")


# --- what a twin cannot express -------------------------------------------------------------------------------------

REQUIRED = [(row, key) for row in TWIN_ROWS for key in row.required]


@pytest.mark.parametrize(("row", "key"), REQUIRED, ids=[f"{r.source}-{r.target}-{k}" for r, k in REQUIRED])
def test_a_feature_that_the_twin_lacks_is_refused_by_its_key(row: TwinRow, key: str) -> None:
    value = config_of(row)[key]
    wrong = [*value[:-1], "sliding_attention"] if isinstance(value, list) else (value or 3) * 2
    config = config_of(row, **{key: wrong})
    with pytest.raises(TwinError, match=key) as refused:
        twin_config(config, read_model(config), row)
    assert refused.value.fields == {"key": key, "model_type": row.source, "twin": row.target}
    silent = {k: v for k, v in config_of(row).items() if k != key}
    default = CLASS_FACTS[row.source].fields[key]
    if default == value or key in row.computed:
        twin_config(silent, read_model(silent), row)
    else:
        with pytest.raises(TwinError, match=key):
            twin_config(silent, read_model(silent), row)


WINDOWED = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0}
REFUSED = (
    ("mistral", "ernie4_5", {"sliding_window": 4096}, (), "sliding_window"),
    ("mistral", "ernie4_5", {}, ("sliding_window",), "sliding_window"),
    ("llama", "ernie4_5", {"attention_bias": True}, (), "attention_bias"),
    ("llama", "helium", {"hidden_size": 96}, (), "head_dim"),
    ("llama", "helium", {"attention_bias": True}, (), "attention_bias"),
    ("ernie4_5", "mistral", {"use_bias": True}, (), "use_bias"),
    ("qwen2", "helium", WINDOWED, ("layer_types",), "layer_types"),
    ("llama", "ernie4_5", {"architectures": ["LlamaForSequenceClassification"]}, (), "architectures"),
    ("llama", "ernie4_5", {"auto_map": {"AutoModelForCausalLM": "modeling.Mine"}}, (), "auto_map"),
    ("llama", "ernie4_5", {"rope_parameters": {"rope_theta": 777.0, "partial_rotary_factor": 0.5}}, (),
     "rope_parameters.partial_rotary_factor"),
)  # fmt: skip


@pytest.mark.parametrize(("source", "target", "changes", "removed", "key"), REFUSED)
def test_refusals_name_the_key_and_the_default_says_why_no_twin_was_taken(
    source, target, changes, removed, key
) -> None:
    row = twin_row(source, target)
    config = {k: v for k, v in config_of(row, **changes).items() if k not in removed}
    to = TABLE[target].pairing.value
    with pytest.raises(TwinError) as refused:
        choose(config, to, target)
    assert refused.value.fields["key"] == key
    assert key.split(".")[-1] in refused.value.message
    choice = choose(config, to)
    assert choice.model_type != target
    if choice.config is None:
        assert [warning.code for warning in choice.warnings] == ["no-twin"]


def test_a_key_that_the_code_reads_and_nobody_tried_is_refused(monkeypatch) -> None:
    row = twin_row("mistral", "ernie4_5")
    config = config_of(row, layer_types=["full_attention"] * 2)
    with pytest.raises(TwinError, match="what layer_types does there was not tried"):
        twin_config(config, read_model(config), row)
    twin_config({**config, "layer_types": None, "a_note": "kept"}, read_model(config), row)


def test_other_names_of_a_key_are_read() -> None:
    row = twin_row("internlm3", "ernie4_5")
    config = {k: v for k, v in config_of(row).items() if k not in ("attention_bias", "mlp_bias")}
    written, _ = twin_config({**config, "qkv_bias": True, "bias": True}, read_model(config), row)
    assert written["use_bias"] is True
    assert not {"qkv_bias", "bias", "attention_bias", "mlp_bias"} & written.keys()
    with pytest.raises(ConfigConflictError, match="two names of one key"):
        twin_config({**config, "qkv_bias": True, "attention_bias": False}, read_model(config), row)


def test_a_key_that_only_the_twin_would_obey_does_not_pass() -> None:
    llama = twin_config({**ERNIE, "attention_bias": True}, read_model(ERNIE), twin_row("ernie4_5", "llama"))[0]
    assert llama["attention_bias"] is False


STRAY = {
    "attention_chunk_size": 4,
    "kv_sharing_modes": [None, None],
    "layer_types": ["sliding_attention"] * 2,
    "num_kv_shared_layers": 1,
    "per_layer_config": {"0": {"attention_dropout": 0.0}},
    "sliding_window": 4,
}


def generated(directory: Path) -> list[int]:
    """What plain transformers generates, with its cache."""
    ids = torch.arange(3, 15)[None]
    options = {"max_new_tokens": 12, "do_sample": False, "use_cache": True, "eos_token_id": None, "pad_token_id": 0}
    return tiny.load(directory).generate(ids, **options)[0, 12:].tolist()


@pytest.mark.parametrize("row", TWIN_ROWS, ids=NAMES)
def test_both_generate_the_same_and_what_the_cache_reads_is_refused(row: TwinRow, tmp_path: Path) -> None:
    source, there = saved(row, tmp_path / "source", **UNUSUAL), tmp_path / "there"
    converted(source, there, row, row.target)
    assert generated(source) == generated(there)
    assert set(STRAY) == CACHE_READS
    config = read_json(source / "config.json")
    for key, value in STRAY.items():
        if key not in CLASS_FACTS[row.source].fields:
            with pytest.raises(TwinError, match=f"what {key} does there was not tried"):
                twin_config({**config, key: value}, read_model(config), row)


@pytest.mark.parametrize("source_type", ["smollm3", "ministral", "cwm"])
def test_a_key_of_the_cache_carried_over_would_change_what_is_generated(source_type: str, tmp_path: Path) -> None:
    """The fault that the refusal exists for: the source's class fills in layer_types, and its twin obeys the key."""
    row = next(row for row in twin_rows(source_type) if "layer_types" not in CLASS_FACTS[row.target].fields)
    source, there = saved(row, tmp_path / "source", **UNUSUAL), tmp_path / "there"
    converted(source, there, row, row.target)
    for directory in (source, there):
        edit_json(directory / "config.json", attention_chunk_size=4)
    assert apart(source, there) < ALLOWED
    assert generated(source) != generated(there)


@pytest.mark.parametrize("layers", ["2", 10**9, -1, True])
def test_a_number_of_layers_that_cannot_be_is_named(layers) -> None:
    row = twin_row("helium", "qwen2")
    config = config_of(row, num_hidden_layers=layers)
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        twin_config(config, read_model(config), row)


@pytest.mark.parametrize("named", ["LlamaForCausalLM", ["LlamaForCausalLM"], None, []])
def test_architectures_in_any_form_become_the_twins(named) -> None:
    written, _ = twin_config({**LLAMA, "architectures": named}, read_model(LLAMA), twin_row("llama", "ernie4_5"))
    assert written["architectures"] == ["Ernie4_5ForCausalLM"]


def test_a_dropout_that_gets_lost_is_said() -> None:
    choice = choose({**LLAMA, "attention_dropout": 0.1}, "interleaved")
    assert [warning.code for warning in choice.warnings] == ["dropout-lost"]


def test_a_tokenizer_that_the_type_decides_is_said(tmp_path: Path) -> None:
    assert tokenizer_warnings(tmp_path, "llama", "ernie4_5") == ()
    for named, said in (("LlamaTokenizerFast", True), ("PreTrainedTokenizerFast", False)):
        (tmp_path / "tokenizer_config.json").write_text(f'{{"tokenizer_class": "{named}"}}', encoding="utf-8")
        assert bool(tokenizer_warnings(tmp_path, "llama", "ernie4_5")) is said


# --- verify and inspect understand it -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A Llama with biases, and its twin; nothing in its config is the default of the twin's class."""
    row, where = twin_row("llama", "ernie4_5"), tmp_path_factory.mktemp("twins")
    source = saved(row, where / "source", 1, **UNUSUAL, tie_word_embeddings=False)
    converted(source, where / "there", row)
    return source, where / "there"


def test_verify_passes_in_both_orders_and_runs_both_stock_classes(biased) -> None:
    for a, b in (biased, biased[::-1]):
        result = verify.verify(a, b)
        assert result.passed, result.checks
        assert result.relation == "converted"
        assert "stock-classes" in {check.name for check in result.checks}


LOST = ("rms_norm_eps", "use_bias", "rope_parameters", "tie_word_embeddings", "hidden_act", "num_key_value_heads")


@pytest.mark.parametrize("key", LOST)
def test_a_key_that_was_lost_fails_verify(key: str, biased, tmp_path: Path) -> None:
    source, there = biased
    for file in there.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    if key == "num_key_value_heads":  # its default in the class is the tiny model's, so it becomes another number
        edit_json(tmp_path / "config.json", num_key_value_heads=4)
    else:
        edit_json(tmp_path / "config.json", key)
    result = verify.verify(source, tmp_path)
    assert not result.passed
    if key != "rope_parameters":
        said = "; ".join(check.detail for check in result.checks if not check.passed)
        assert key in said or "key-value heads" in said


def test_rows_that_did_not_move_fail_the_stock_classes_too(biased, tmp_path: Path) -> None:
    source, there = biased
    (tmp_path / "config.json").write_bytes((there / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    failed = {check.name for check in verify.verify(source, tmp_path).checks if not check.passed}
    assert {"tensors-moved", "logits", "stock-classes"} <= failed


def test_a_config_that_no_row_makes_fails_verify(biased, tmp_path: Path) -> None:
    """The source gets a key that the twin cannot have: the result cannot be the same model."""
    source, there = biased
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    edit_json(tmp_path / "config.json", auto_map={"AutoModelForCausalLM": "modeling.Mine"})
    failed = {check.name: check.detail for check in verify.verify(tmp_path, there).checks if not check.passed}
    assert "auto_map" in failed["configs"]


def test_the_same_weights_under_both_types_are_the_same_model(biased, tmp_path: Path) -> None:
    """One kept its type, so only the other runs in its stock class."""
    source, there = biased
    converted(source, tmp_path / "same", twin_row("llama", "ernie4_5"), SAME)
    result = verify.verify(tmp_path / "same", there)
    assert (result.passed, result.relation) == (True, "same"), result.checks


def test_an_extended_twin_and_its_way_back_are_extensions_of_the_source(biased, tmp_path: Path) -> None:
    source, there = biased
    extend.apply(extend.plan(there, tmp_path / "long", Method.YARN, to=256))
    back = convert.apply(convert.plan(tmp_path / "long", tmp_path / "back", Pairing.HALF))
    assert back.written_as == "llama"
    for result in (verify.verify(source, tmp_path / "long"), verify.verify(source, tmp_path / "back")):
        assert (result.passed, result.relation) == (True, "extended"), result.checks


def test_inspect_has_two_witnesses_and_no_warning(biased) -> None:
    found = detect.inspect(biased[1])
    assert found.pairing == "interleaved"
    assert [(e.source, e.says) for e in found.evidence] == [("marker", "interleaved"), ("family", "interleaved")]
    assert found.warnings == ()


# --- the file is what transformers says -----------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", CLASS_FACTS)
def test_class_facts_are_those_of_the_installed_transformers(model_type: str) -> None:
    facts, config = CLASS_FACTS[model_type], AutoConfig.for_model(model_type)
    assert getattr(transformers, facts.architecture).__name__ == facts.architecture
    assert dict(config.attribute_map) == facts.aliases
    computed = {"head_dim", "num_key_value_heads", "layer_types", "no_rope_layers", "attention_multiplier"}
    assert len(facts.fields) > 15
    for key, default in facts.fields.items():
        if default is not None or key not in computed:
            gated = key == "sliding_window" and getattr(config, "use_sliding_window", True) is False
            assert getattr(config, key) == (None if gated else default), key
