"""The tensors that stand for a quantised weight, or beside one: how each follows the output rows of its projection.

Everything is data: a row per way of quantising, a line per tensor. A projection's output rows are permuted, so a scale
per row moves, one for the whole projection stays, and one per block of rows allows only what does not leave its block.
Sources are the packages that write these formats, by version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ropetool.families.quantisation import Quantisation


class Form(Enum):
    """How a tensor holds what belongs to the output rows of its projection."""

    LEADING = "its leading dimensions, taken together, are the rows"
    ROWS = "its first dimension is the rows"
    COLUMNS = "its last of two dimensions is the rows"
    PACKED_ROWS = "its first of two dimensions is the rows, packed into 32-bit words"
    PACKED_COLUMNS = "its last of two dimensions is the rows, packed into 32-bit words"
    BLOCKS = "one value for each block of rows and columns"
    ONE = "one value for the projection, or one for each of fused q, k and v"
    HEADS = "one value for the projection, or one for each head"
    ZERO = "a single 0, the code of row-major"
    STAYS = "of the input side, or of the tensor as a whole"


FLOATS = frozenset(("F16", "BF16", "F32", "F64"))
FLOAT8 = frozenset(("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"))
BYTES = FLOAT8 | {"I8"}
PACKED_BYTES = frozenset(("U8", "F4"))
WORDS = frozenset(("I32",))


@dataclass(frozen=True)
class Companion:
    """One kind of tensor: its name within the module, and its forms, of which the first that fits its shape counts.

    ``dtypes`` empty: any. ``is_weight`` marks what holds the weight itself.
    """

    kind: str
    forms: tuple[Form, ...]
    dtypes: frozenset[str] = frozenset()
    is_weight: bool = False


@dataclass(frozen=True)
class Format:
    """One way of quantising: the ``quant_method`` names that mean it, and what its tensors are.

    ``when`` are values that keys of the quantisation config must have (the empty one: absent). ``only_beside`` are the
    dtypes that a module's weight must have for these lines to count; empty: any. ``refusal`` is why rows of tensors
    that ``companions`` lacks cannot be moved; what is not quantised in such a checkpoint moves as ever.
    """

    name: str
    methods: tuple[str, ...]
    companions: tuple[Companion, ...] = ()
    source: str = ""
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    only_beside: frozenset[str] = frozenset()
    refusal: str = ""

    def means(self, quantisation: Quantisation) -> bool:
        """Whether a config's quantisation is this one."""
        named = quantisation.method in self.methods
        return named and all(quantisation.says(key) in values for key, values in self.when.items())

    def companion(self, kind: str, dtype: str, weight_dtype: str = "") -> Companion | None:
        """The line for a tensor that is not plain, beside a weight of ``weight_dtype``; None where the row has none."""
        explained = not self.only_beside or weight_dtype in self.only_beside
        lines = self.companions if explained else CACHE
        return next((line for line in lines if line.kind == kind and (not line.dtypes or dtype in line.dtypes)), None)


def _all(forms: tuple[Form, ...], kinds: str, dtypes: frozenset[str] = frozenset()) -> tuple[Companion, ...]:
    return tuple(Companion(kind, forms, dtypes) for kind in kinds.split())


def _weight(kind: str, form: Form, dtypes: frozenset[str]) -> Companion:
    return Companion(kind, (form,), dtypes, is_weight=True)


STAYING = Companion("", (Form.STAYS,))
# Scales of cached keys and of queries, beside the projection or on the attention itself.
CACHE = (
    *_all((Form.HEADS, Form.LEADING), "k_scale q_scale k_zero_point q_zero_point"),
    *_all((Form.STAYS,), "v_scale v_zero_point"),
    *_all((Form.ONE,), "kv_scale"),
)
# On the attention itself: what it scales, empty for values, which never move.
CACHED: Mapping[str, tuple[str, Companion]] = {
    line.kind: ({"k": "k", "q": "q", "v": ""}.get(line.kind.partition("_")[0], "kv"), line) for line in CACHE
}
PER_ROW_OR_BLOCK = (Form.ROWS, Form.ONE, Form.BLOCKS)
SCALED = (
    _weight("weight", Form.ROWS, BYTES),
    *_all(PER_ROW_OR_BLOCK, "weight_scale weight_scale_inv"),
    *_all(PER_ROW_OR_BLOCK, "weight_zero_point", BYTES | FLOATS | {"U8", "I16"}),
    *_all((Form.ONE,), "weight_scale_2 weight_global_scale output_scale output_zero_point"),
    *_all(
        (Form.STAYS,),
        "input_scale input_zero_point input_global_scale input_scale_ub activation_scale pre_quant_scale",
    ),
    *CACHE,
)
HALVES = (_weight("weight", Form.ROWS, PACKED_BYTES),)
BY_GROUP_OF_INPUTS = (_weight("weight", Form.ROWS, frozenset(("U32",))), *_all((Form.ROWS,), "scales biases qbiases"))

GPTQ_LAYOUTS = ("", "gptq", "gptq_v2")
# v1 and v2 of GPTQ differ by one in the stored zeros, which a permutation does not touch.
GPTQ = (
    _weight("qweight", Form.COLUMNS, WORDS),
    *_all((Form.COLUMNS,), "scales", FLOATS),
    *_all((Form.PACKED_COLUMNS,), "qzeros", WORDS),
    *_all((Form.STAYS,), "g_idx"),
    *CACHE,
)
COMPRESSED_LAYOUTS = (
    *("", "dense", "int-quantized", "float-quantized", "naive-quantized", "pack-quantized", "mixed-precision"),
    *("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized"),
)
COMPRESSED = (
    *SCALED,
    _weight("weight_packed", Form.ROWS, WORDS | PACKED_BYTES),
    *_all((Form.PACKED_ROWS,), "weight_zero_point", WORDS),
    *_all((Form.STAYS,), "weight_shape weight_g_idx"),
)

ANEW = "convert the checkpoint that it was quantised from, and quantise the result"
AWQ = (
    "AWQ packs eight output rows into each 32-bit word, in an order of its own for each kernel (gemm, gemv, gemv_fast, "
    "marlin), so that rows cannot be moved as bytes"
)
NF4 = (
    "bitsandbytes 4-bit flattens the weight and scales it by runs of 64 or so values, whatever rows they are in, most "
    "often with scales that are quantised themselves, in runs of 256; where a run reaches over several rows, to move "
    "one takes new scales and new rounding, and ropetool does not repack the cases in which none does"
)
KERNEL = "the weight lies in the order of one kernel, not in rows"

FORMATS: tuple[Format, ...] = (
    Format("not declared", ("",), SCALED, when={"bits": ("",)}, only_beside=BYTES),
    Format(
        "per tensor, per row, or by blocks", ("fp8", "fbgemm_fp8", "mxfp8"), SCALED,
        "transformers 5.24.0, integrations/finegrained_fp8.py (FP8Linear) and fbgemm_fp8.py (FbgemmFp8Linear)",
    ),
    Format(
        "ModelOpt", ("modelopt", "modelopt_fp4", "modelopt_mixed"), (*SCALED, *HALVES),
        "nvidia-modelopt 0.47.0, torch/export/quant_utils.py: NVFP4 halves the columns; pack_int4_in_uint8 halves "
        "the rows, which no form here fits",
    ),
    Format(
        "Quark, 8-bit floats", ("quark",),
        (_weight("weight", Form.ROWS, FLOAT8), *(line for line in SCALED if not line.is_weight)),
        "amd-quark 0.13, torch/utils/pack.py: Pack_4_bits, Pack_8_bits and Pack_mxfp4",
        refusal="Quark transposes the integers of some schemes and mixes the scales of others into the bytes of the "
        "weight, and no shape tells which",
    ),
    Format(
        "compressed-tensors", ("compressed-tensors",), COMPRESSED,
        "compressed-tensors 0.20.1, compressors/*/base.py and pack_quantized/helpers.py (packed_dim=0 for zero points)",
        when={"format": COMPRESSED_LAYOUTS},
    ),
    Format(
        "compressed-tensors, sparse or for marlin", ("compressed-tensors",), refusal=KERNEL,
        source="compressed-tensors 0.20.1, config/base.py: sparse-bitmask, sparse-24-bitmask and marlin-24",
    ),
    Format(
        "GPTQ", ("gptq",), GPTQ,
        "auto-gptq 0.7.1, nn_modules/qlinear/qlinear_cuda_old.py, pack",
        when={"checkpoint_format": GPTQ_LAYOUTS, "format": GPTQ_LAYOUTS, "is_marlin_format": ("", "false")},
    ),
    Format("GPTQ, repacked for a kernel", ("gptq", "gptq_marlin", "marlin", "bitblas"), refusal=KERNEL),
    Format(
        "AutoRound in GPTQ's layout", ("auto-round",), GPTQ, "auto-round 0.16.1, export/export_to_autoround/export.py",
        when={"packing_format": ("auto_round:auto_gptq",)},
    ),
    Format(
        "AutoRound in another layout", ("auto-round",),
        refusal="its packing_format is not GPTQ's, and the order of rows in it is not known here",
    ),
    Format(
        "bitsandbytes 4-bit", ("bitsandbytes", "bitsandbytes_4bit"), when={"load_in_4bit": ("true",)}, refusal=NF4,
        source="bitsandbytes 0.50.2, functional.py, quantize_4bit",
    ),
    Format(
        "bitsandbytes 8-bit", ("bitsandbytes", "bitsandbytes_8bit"),
        (_weight("weight", Form.ROWS, frozenset(("I8",))), *_all((Form.ROWS,), "SCB"),
         *_all((Form.ZERO,), "weight_format")),
        "bitsandbytes 0.50.2, nn/modules.py, Linear8bitLt._save_to_state_dict",
    ),
    Format(
        "quanto 8-bit", ("quanto",),
        (_weight("weight._data", Form.ROWS, BYTES), *_all((Form.ROWS, Form.ONE), "weight._scale"),
         *_all((Form.ONE,), "input_scale output_scale")),
        "optimum-quanto 0.2.7, tensor/weights/qbytes.py; its 4-bit weights (weight._data._data) fold the rows",
    ),
    Format(
        "MLX and Metal, by groups of inputs", ("metal",), BY_GROUP_OF_INPUTS,
        "transformers 5.24.0, integrations/metal_quantization.py, MetalLinear",
    ),
    Format("MLX, by groups of inputs", ("",), BY_GROUP_OF_INPUTS, "mlx 0.32.4, nn/layers/quantized.py"),
    Format("MXFP4 experts", ("mxfp4",), source="transformers 5.24.0, integrations/mxfp4.py: only experts are packed"),
    Format("AWQ", ("awq",), refusal=AWQ, source="autoawq 0.2.7, utils/packing_utils.py"),
    Format(
        "HQQ", ("hqq",), refusal="HQQ reshapes the weight into groups and packs them without regard to its rows",
        source="transformers 5.24.0, integrations/hqq.py",
    ),
    Format(
        "EETQ", ("eetq",), refusal=KERNEL, source="transformers 5.24.0, integrations/eetq.py, EetqLinear: [in, out]"
    ),
    Format(
        "BitNet, packed", ("bitnet",), _all((Form.ONE,), "weight_scale"),
        refusal="four rows, a quarter of the projection apart, share each byte, and ropetool does not repack them",
        source="transformers 5.24.0, integrations/bitnet.py, pack_weights",
    ),
    Format(
        "codes of vectors", ("aqlm", "vptq", "quip", "quip#", "quip_sharp", "higgs"),
        refusal="the weight is codes of vectors that may span rows, or is rotated before it is coded",
        source="transformers 5.24.0, integrations/aqlm.py, vptq.py, higgs.py",
    ),
    Format(
        "SpQR", ("spqr",), refusal="the weight is tiles of 16 x 16 with outliers kept apart",
        source="transformers 5.24.0, integrations/spqr.py",
    ),
    Format("EXL2 and EXL3", ("exl2", "exl3"), refusal=KERNEL),
    Format(
        "tensor subclasses", ("torchao", "sinq", "fp_quant", "fouroversix"),
        refusal="its tensors are parts of a tensor subclass whose layout the checkpoint does not spell out",
        source="transformers 5.24.0, integrations/torchao.py, sinq.py, fp_quant.py, fouroversix.py",
    ),
)  # fmt: skip


def plain(kind: str) -> Companion:
    """What a tensor is that no quantisation touched: a weight, a bias, a norm, one value or line for each row."""
    return Companion(kind, (Form.LEADING,), FLOATS, is_weight=kind == "weight")


def format_of(quantisation: Quantisation) -> Format:
    """The row of a quantisation; one for an unknown method, in which only unquantised tensors move."""
    found = next((row for row in FORMATS if row.means(quantisation)), None)
    return found or Format(
        quantisation.method or "undeclared", (quantisation.method,),
        refusal=f"the quantisation method {quantisation.method!r} is not one that is known here",
    )  # fmt: skip
