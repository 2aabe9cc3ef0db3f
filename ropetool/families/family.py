"""What a row of the family table is made of.

A row says how the class pairs rows, which tensors of its attention module move with the rotation and how their rows
fall into heads, and which stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ropetool.checkpoint.config import BLOCKS
from ropetool.families.cannot import Cannot
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
    checkpoint has is permuted alike: a bias moves with the rows of its weight (an empty name is a parameter of the
    attention itself). A star in the name is any number. ``loaded_as`` are the modules that the class makes of it on
    loading, in the order of its rows, where they have other names there.
    """

    module: str
    rows: tuple[Rows, ...]
    feeds: str = ""
    tensors: tuple[str, ...] = ("weight", "bias")
    loaded_as: tuple[str, ...] = ()


@dataclass(frozen=True)
class Nope:
    """Which layers a class does not rotate.

    ``flags`` is a list in the config, 1 where a layer rotates; ``layer_type`` is the type (in ``layer_types``) of those
    that do not. Where the config has neither, every ``interval``-th layer is one, by ``interval_key`` if it has that
    (``from_last``: counted back from the last layer); without an interval, the class has a pattern of its own, and
    config.json must have ``layer_types``.
    ``only_with`` is a key that must be set for any layer to be one. Rows of such a layer move like all others, which
    no logit shows; with ``unmoved`` its projections have another shape, and stay.
    """

    flags: str = ""
    layer_type: str = ""
    interval_key: str = ""
    interval: int = 0
    from_last: bool = False
    only_with: str = ""
    unmoved: bool = False


@dataclass(frozen=True)
class Needs:
    """A config key that must have ``value`` (``default`` where config.json has none), or ``otherwise`` is so.

    ``scheme`` is what the class then has instead of RoPE; empty where it has RoPE in a form that cannot be converted.
    """

    key: str
    value: Any
    default: Any
    otherwise: str
    scheme: str = ""


@dataclass(frozen=True)
class Kind:
    """The layers of one type (in ``layer_types``), where a class has a rope block for each.

    ``default`` is the block that the class uses where config.json has none. ``theta_key`` is the top-level key of the
    base in configs of the version-4 style, empty where the class reads none. ``instead`` maps keys of the geometry to
    those that these layers take it from, where config.json has them; ``kv_factor`` is how many times the config's
    key-value heads they have. ``scaled_by_flat``: a ``rope_scaling`` that is not nested scales them;
    ``added_to_flat_yarn`` is what the class adds to one of yarn, and an extension writes. ``theta_lost``: where another
    kind has the same ``theta_key``, transformers 5 takes it for that one alone. The first kind of a row is the one that
    an extension scales.
    """

    layer_type: str
    default: Mapping[str, Any]
    theta_key: str = ""
    instead: Mapping[str, str] = field(default_factory=dict)
    kv_factor: int = 1
    scaled_by_flat: bool = False
    added_to_flat_yarn: Mapping[str, Any] = field(default_factory=dict)
    theta_lost: bool = False


@dataclass(frozen=True)
class Site:
    """One place in a layer where q meets k: the module's name, its tensors, and the keys of their geometry.

    ``within`` is a module above it, where only attention below that one is meant; ``section`` is the key of a config
    of its own. A site with a ``pairing`` of its own
    (an indexer whose class rotates the other way) is left in it by a conversion.
    """

    module: str
    moves: tuple[Moved, ...]
    stays: tuple[str, ...]
    keys: GeometryKeys
    pairing: Pairing | None = None
    within: str = ""
    section: str = ""


@dataclass(frozen=True)
class Family:
    """One row.

    * ``moves``, ``stays``: the modules and parameters of the ``attention`` whose rows move, and those that never do;
    * ``keys``, ``defaults``: where the geometry is read, and what the class uses where config.json lacks the key;
    * ``pairing_key``: a config key that the class obeys; true means interleaved;
    * ``theta_keys``: the top-level names of the base, the one to write first; none: the class has it fixed;
    * ``theta_list``: a list with the base of every layer, 0 where one does not turn, which goes before the block's;
    * ``blocks``: the rope blocks that the class reads, ``rope_scaling`` and ``rope_parameters`` if not told otherwise;
    * ``only_keys``: the keys that ``rope_scaling`` may have, if not any: its config class in transformers 4.57 refuses
      others;
    * ``methods``: the scaling methods that the class can take, if not all, with ``methods_reason``;
    * ``nope``: which layers the class does not rotate; ``kinds``: which types of layers have a rope block of their own;
    * ``within``: the part of the model that the row is about, ``section``: the key of its own config, which its
      geometry keys start with; ``others``: attention modules beside the main one;
    * ``towers``: modules that hold attention of another model (vision, audio), which is left alone; ``still``:
      attention of the model itself that its class does not rotate;
    * ``may_lack``: what a layer's attention may do without: ``k`` where it takes another layer's, ``qk`` where it may
      be another kind of mixer; ``mixers``: layer types whose tensors under the same names are no attention;
    * ``needs``: conditions on the config; ``refusal``: why the type can be read, and not converted; ``unread``: why the
      probe cannot read the class, so that the row rests on its source alone;
    * ``fixed_alpha``: a ``dynamic`` block with ``alpha`` raises the base by it once, whatever the length;
    * ``backwards``: pairs turn by the negative angle; ``learned``: every frequency has a factor among the weights;
    * ``cannot``: run-time checks that a sound model of the class does not pass, with the reason;
    * ``twins``: types whose class is the same but for the layout, tensor names included;
    * ``probed``: the row is none of the table's, but was read from the class just now: what is made by it must be
      verified before anyone gets it.
    """

    model_type: str
    pairing: Pairing
    moves: tuple[Moved, ...]
    stays: tuple[str, ...]
    source: str
    attention: str = "self_attn"
    within: str = ""
    section: str = ""
    keys: GeometryKeys = GeometryKeys()
    defaults: Mapping[str, float] = field(default_factory=dict)
    pairing_key: str | None = None
    theta_keys: tuple[str, ...] = ("rope_theta",)
    theta_list: str = ""
    blocks: tuple[str, ...] = BLOCKS
    only_keys: tuple[str, ...] = ()
    methods: frozenset[str] | None = None
    methods_reason: str = ""
    nope: Nope | None = None
    kinds: tuple[Kind, ...] = ()
    others: tuple[Site, ...] = ()
    may_lack: str = ""
    mixers: frozenset[str] = frozenset()
    refusal: str = ""
    unread: str = ""
    needs: tuple[Needs, ...] = ()
    towers: frozenset[str] = frozenset()
    still: tuple[str, ...] = ()
    backwards: bool = False
    fixed_alpha: bool = False
    learned: bool = False
    cannot: tuple[Cannot, ...] = ()
    twins: tuple[str, ...] = ()
    probed: bool = False

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """Every site, the main one first."""
        return (Site(self.attention, self.moves, self.stays, self.keys, within=self.within), *self.others)

    @cached_property
    def deepest_first(self) -> tuple[tuple[int, Site], ...]:
        """The sites with their numbers, those before whose names hold the others' names."""
        return tuple(sorted(enumerate(self.sites), key=lambda entry: -len(entry[1].module + entry[1].within)))

    @cached_property
    def attention_words(self) -> frozenset[str]:
        """Every word of the names of the modules that the row knows as attention, rotated or not."""
        return frozenset(word for site in self.sites for word in site.module.split(".")) | set(self.still)

    @property
    def projections(self) -> tuple[str, ...]:
        """The projections whose rows move."""
        return tuple(moved.module for moved in self.moves if moved.feeds)

    @property
    def companions(self) -> tuple[str, ...]:
        """The norms, and parameters of the attention itself, that move with them."""
        return tuple(moved.module for moved in self.moves if not moved.feeds)

    @property
    def elsewhere(self) -> tuple[tuple[str, Moved], ...]:
        """What moves at the other sites along with the main one, each with the name of its site."""
        return tuple(
            (site.within or site.module.rpartition(".")[2], moved)
            for site in self.others
            if site.pairing is None
            for moved in site.moves
        )

    @property
    def checked(self) -> str:
        """How the row was checked: by the probe of the class, or why that cannot read it."""
        return f"no: {self.unread}" if self.unread else "probe"

    @property
    def theta_default(self) -> float:
        """The base that the class uses when the config has none."""
        return self.defaults.get("rope_theta", 10000.0)
