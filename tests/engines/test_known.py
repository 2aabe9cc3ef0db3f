"""What was read of the engines' registries, against ropetool's own table, and the names in the rows against it."""

from __future__ import annotations

import pytest

from ropetool.engines import known, llama_cpp, sglang, vllm
from ropetool.engines.known import EXLLAMAV2, LLAMA_CPP, SGLANG, VLLM, Server
from ropetool.families.decoder import COMPOSITES
from ropetool.families.table import TABLE
from ropetool.rope.pairing import Pairing


def family_pairing(model_type: str) -> Pairing | None:
    text_type = COMPOSITES[model_type].text_type if model_type in COMPOSITES else model_type
    return TABLE[text_type].pairing if text_type in TABLE else None


@pytest.mark.parametrize("server", [VLLM, SGLANG], ids=["vllm", "sglang"])
def test_a_server_knows_a_type_by_one_class(server: Server) -> None:
    assert len(server.native) > 100
    assert len(server.backend) > 100
    assert server.backend.isdisjoint(server.native)
    assert {*server.native, *server.backend} <= {*TABLE, *COMPOSITES}


def test_the_converter_takes_the_layout_of_transformers_but_for_what_is_not_read() -> None:
    other = {name for name, row in LLAMA_CPP.items() if family_pairing(name) not in (None, Pairing(row.pairing))}
    assert other == {"hy_v4", "pocket_tts"}
    assert other <= llama_cpp.UNREAD.keys()
    assert LLAMA_CPP["llama"].llama3
    assert not LLAMA_CPP["qwen2"].llama3
    assert [name for name in ("phi3", "llama", "minicpm3") if LLAMA_CPP[name].longrope] == ["phi3", "minicpm3"]


def test_exllamav2_rotates_as_transformers_does() -> None:
    assert {name: pairing for name, pairing in EXLLAMAV2.items() if family_pairing(name) is not Pairing(pairing)} == {}


def test_no_row_names_a_type_or_a_file_that_is_not_known() -> None:
    files = {
        "vllm": ({*VLLM.native.values()}, (*vllm.MLA_FILES, "gpt_oss")),
        "sglang": (
            {*SGLANG.native.values()},
            (
                *(*sglang.MLA_FILES, *sglang.UNSCALED_FILES, *sglang.WHOLE_FILES, *sglang.THETA_FIXED),
                *(*sglang.ORIGINAL_ABOVE_FILES, *sglang.LOCAL_PLAIN_FILES, *sglang.GEMMA4_FILES),
            ),
        ),
    }
    for engine, (there, named) in files.items():
        assert {*named} <= there, engine
    for row, server in ((vllm, VLLM), (sglang, SGLANG)):
        text_types = {COMPOSITES[name].text_type for name in server.native if name in COMPOSITES}
        assert row.UNREAD.keys() <= {*server.native, *server.backend, *text_types}, row.__name__
    assert llama_cpp.UNREAD.keys() <= LLAMA_CPP.keys()
    architectures = {row.gguf for row in LLAMA_CPP.values()}
    assert {*llama_cpp.WITH_MSCALE} <= architectures
    assert known.LLAMA_CPP is LLAMA_CPP
