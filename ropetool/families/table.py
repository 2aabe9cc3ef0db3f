"""The family table: one row per model type, read from the model's own code.

A row says how the class pairs rows, which tensors of its attention module move with the rotation and how their rows
fall into heads, and which stay. Everything is data: no other module asks for a model type by name.
Sources are files of transformers 5.24.0, under ``models/<model type>/``, unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ropetool.families.geometry import Each, GeometryKeys, Part, Rows
from ropetool.rope.pairing import Pairing

HALF, INTERLEAVED = Pairing.HALF, Pairing.INTERLEAVED

ROTARY, PLAIN = Part.ROTARY, Part.PLAIN
Q: tuple[Rows, ...] = (Each("heads", (ROTARY,)),)
K: tuple[Rows, ...] = (Each("kv_heads", (ROTARY,)),)
V: tuple[Rows, ...] = (Each("kv_heads", (PLAIN,)),)
ONE_HEAD: tuple[Rows, ...] = (ROTARY,)


@dataclass(frozen=True)
class Moved:
    """A module of the attention whose rows move: a projection, or a norm between projection and rotation.

    ``feeds`` is ``q``, ``k``, ``qk`` for a projection, and empty for a norm. Every tensor in ``tensors`` that a
    checkpoint has is permuted alike: a bias moves with the rows of its weight.
    """

    module: str
    rows: tuple[Rows, ...]
    feeds: str = ""
    tensors: tuple[str, ...] = ("weight", "bias")


@dataclass(frozen=True)
class Family:
    """One row. ``stays`` are the modules (or buffers) of the attention that never move.

    ``defaults`` are the values that the class itself uses where config.json lacks the key. ``pairing_key`` is a
    config key that the class obeys: true means interleaved. ``methods`` limits the scaling methods that the class
    can take, with ``methods_reason``. ``theta_keys`` are the top-level names of the base, the one to write first; none:
    the class has it fixed.
    """

    model_type: str
    pairing: Pairing
    moves: tuple[Moved, ...]
    stays: tuple[str, ...]
    source: str
    attention: str = "self_attn"
    keys: GeometryKeys = GeometryKeys()
    defaults: Mapping[str, float] = field(default_factory=dict)
    pairing_key: str | None = None
    theta_keys: tuple[str, ...] = ("rope_theta",)
    methods: frozenset[str] | None = None
    methods_reason: str = ""

    @property
    def projections(self) -> tuple[str, ...]:
        """The projections whose rows move."""
        return tuple(moved.module for moved in self.moves if moved.feeds)

    @property
    def companions(self) -> tuple[str, ...]:
        """The norms that move with them."""
        return tuple(moved.module for moved in self.moves if not moved.feeds)

    @property
    def theta_default(self) -> float:
        """The base that the class uses when the config has none."""
        return self.defaults.get("rope_theta", 10000.0)


SEPARATE = (Moved("q_proj", Q, "q"), Moved("k_proj", K, "k"))
HEAD_NORMS = (Moved("q_norm", ONE_HEAD), Moved("k_norm", ONE_HEAD))
FULL_NORMS = (Moved("q_norm", Q), Moved("k_norm", K))
V_O = ("v_proj", "o_proj", "rotary_emb")

_ROWS = (
    Family(
        "llama", HALF, SEPARATE, V_O, "modeling_llama.py: rotate_half, apply_rotary_pos_emb",
        defaults={"max_position_embeddings": 2048},
    ),
    Family(
        "mistral", HALF, SEPARATE, V_O, "modeling_mistral.py: rotate_half",
        defaults={"num_key_value_heads": 8, "max_position_embeddings": 131072},
    ),
    Family(
        "qwen2", HALF, SEPARATE, V_O, "modeling_qwen2.py: rotate_half; q/k/v have biases",
        defaults={"num_key_value_heads": 32, "max_position_embeddings": 32768, "use_sliding_window": False},
    ),
    Family(
        "qwen3", HALF, SEPARATE + HEAD_NORMS, V_O, "modeling_qwen3.py: rotate_half; norms of one head before it",
        defaults={
            "head_dim": 128, "num_key_value_heads": 32, "max_position_embeddings": 32768, "use_sliding_window": False,
        },
    ),
    Family(
        "olmo2", HALF, SEPARATE + FULL_NORMS, V_O, "modeling_olmo2.py: rotate_half; norms over all heads before it",
        defaults={"max_position_embeddings": 2048},
    ),
    Family(
        "gemma2", HALF, SEPARATE, V_O, "modeling_gemma2.py: rotate_half",
        defaults={"head_dim": 256, "num_key_value_heads": 4, "max_position_embeddings": 8192},
    ),
    Family(
        "helium", INTERLEAVED, SEPARATE, V_O, "modeling_helium.py: rotate_half takes x[..., 0::2] and x[..., 1::2]",
        defaults={"head_dim": 128, "num_key_value_heads": 20, "rope_theta": 100000.0, "max_position_embeddings": 4096},
    ),
    Family(
        "ernie4_5", INTERLEAVED, SEPARATE, V_O, "modeling_ernie4_5.py: rotate_half takes x[..., 0::2] and x[..., 1::2]",
        defaults={"head_dim": 128, "num_key_value_heads": 2, "rope_theta": 500000.0, "max_position_embeddings": 131072},
    ),
    Family(
        "cohere", INTERLEAVED, SEPARATE + FULL_NORMS, V_O,
        "modeling_cohere.py: repeat_interleave of the angles; with use_qk_norm, norms stored as [heads, head_dim]",
        defaults={"rope_theta": 500000.0, "max_position_embeddings": 8192},
    ),
    Family(
        "glm4", INTERLEAVED, SEPARATE, V_O, "modeling_glm4.py: rotate_half takes x[..., 0::2] and x[..., 1::2]",
        keys=GeometryKeys(rotary=("partial_rotary_factor",)),
        defaults={
            "head_dim": 128, "num_key_value_heads": 2, "partial_rotary_factor": 0.5, "max_position_embeddings": 131072,
        },
    ),
    Family(
        "gpt_neox", HALF, (Moved("query_key_value", (Each("heads", (ROTARY, ROTARY, PLAIN)),), "qk"),),
        ("dense", "rotary_emb", "bias", "masked_bias"),
        "modeling_gpt_neox.py: rotate_half over rotary_ndims; rows are [q, k, v] head by head",
        attention="attention",
        # configuration_gpt_neox.py, convert_rope_params_to_dict: rope_theta and partial_rotary_factor at the top level
        # are not read; inside a block they win.
        keys=GeometryKeys(kv_heads=None, rotary=("rotary_pct",)),
        defaults={"rotary_pct": 0.25, "max_position_embeddings": 2048},
        theta_keys=("rotary_emb_base",),
    ),
    Family(
        "phi3", HALF, (Moved("qkv_proj", Q + K + V, "qk"),), ("o_proj", "rotary_emb"),
        "modeling_phi3.py: rotate_half; rows are all q heads, all k heads, all v heads",
        keys=GeometryKeys(rotary=("partial_rotary_factor",)),
        defaults={"partial_rotary_factor": 1.0, "max_position_embeddings": 4096},
        methods=frozenset(("default", "longrope", "ntk", "abf")),
        methods_reason="Phi3Config renames any yarn block to longrope, and refuses every type but longrope",
    ),
    Family(
        "gptj", INTERLEAVED, SEPARATE, ("v_proj", "out_proj", "bias", "masked_bias", "embed_positions"),
        "modeling_gptj.py: rotate_every_two over rotary_dim; base 10000 in create_sinusoidal_positions",
        attention="attn",
        keys=GeometryKeys(
            heads="n_head", kv_heads=None, hidden="n_embd", head_dim=(), rotary=("rotary_dim",), length="n_positions"
        ),
        defaults={"rotary_dim": 64, "n_positions": 2048},
        theta_keys=(),
        methods=frozenset(("default",)),
        methods_reason="GPTJModel builds its table with base 10000 and reads no rope key from the config",
    ),
    Family(
        "deepseek_v3", INTERLEAVED,
        (
            Moved("q_proj", Q, "q"), Moved("q_b_proj", Q, "q"),
            Moved("kv_a_proj_with_mqa", (Part.LATENT, Part.ROTARY_ONLY), "k"),
        ),
        ("q_a_proj", "q_a_layernorm", "kv_a_layernorm", "kv_b_proj", "o_proj", "rotary_emb"),
        "modeling_deepseek_v3.py: apply_rotary_pos_emb_interleave when config.rope_interleave (default true)",
        keys=GeometryKeys(
            kv_heads=None, head_dim=("qk_nope_head_dim", "qk_rope_head_dim"), rotary=("qk_rope_head_dim",),
            latent="kv_lora_rank", rope_at_end=True,
        ),
        defaults={
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "kv_lora_rank": 512, "max_position_embeddings": 4096,
        },
        pairing_key="rope_interleave",
    ),
)  # fmt: skip

TABLE: Mapping[str, Family] = {row.model_type: row for row in _ROWS}
