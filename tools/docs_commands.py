"""One page for each command, from the app itself: how it is called, its options, its exit codes.

What only a person can say (examples, and what the keys of the JSON mean) is in docs/commands/NAME.md, where comments
``<!-- made: about NAME -->`` and ``<!-- made: options NAME -->`` stand for what is made here. A command without such a
file still has its page.

    python tools/docs_commands.py [NAME]      print what is made
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import typer

from ropetool.cli.app import app
from tools.docs_markdown import code, prose, table

EXAMPLE = "Example: "
FOLDER = "commands"
# What exit code 1 says, of the commands that end with it; tests/test_docs.py holds this against their code.
FAILED = {
    "convert": "with --verify, or for a type outside the table: the result did not pass, and was not kept",
    "demo": "the converted checkpoint did not pass `verify`",
    "diff": "the two differ in something that RoPE depends on",
    "doctor": "an engine reads the config wrongly or will not load it, or config and weights contradict each other",
    "verify": "they are not the same model, the server turns otherwise, or nothing is proven",
}
ALWAYS = (
    ("0", "done, and true"),
    ("1", ""),
    ("2", "unusable input or usage: one sentence on stderr, or under `--json` an object `error` on stdout"),
    ("130, 143", "interrupted (Ctrl-C, SIGTERM): nothing half-written stays"),
)


def commands() -> Mapping[str, Any]:
    """The commands by name, in the order of the app."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def summary(command: Any) -> str:
    """The first sentence of a command's help."""
    return str(command.help).split("\n\n")[0].replace("\n", " ")


def about(name: str) -> str:
    """What a command is for and how it is called."""
    command, context = _opened(name)
    return "\n\n".join((*_help(command), _shell(command.get_usage(context).removeprefix("Usage: "))))


def options(name: str) -> str:
    """The arguments and options of a command, and its exit codes."""
    command, context = _opened(name)
    parts = []
    for kind, title in (("argument", "Argument"), ("option", "Option")):
        records = [p.get_help_record(context) for p in command.get_params(context) if p.param_type_name == kind]
        rows = [(code(name.removesuffix(" <Named>")), prose(said)) for name, said in filter(None, records)]
        parts += [f"## {title}s", table((title, "What it is"), rows)] if rows else []
    codes = [(number, when or FAILED.get(name, "")) for number, when in ALWAYS]
    return "\n\n".join((*parts, "## Exit codes", table(("Code", "When"), [row for row in codes if row[1]])))


def _opened(name: str) -> tuple[Any, typer.Context]:
    root: Any = typer.main.get_command(app)
    command = root.commands[name]
    return command, typer.Context(command, info_name=name, parent=typer.Context(root, info_name="ropetool"))


def _help(command: Any) -> Iterator[str]:
    for paragraph in str(command.help).split("\n\n"):
        text = " ".join(paragraph.split())
        yield _shell(text.removeprefix(EXAMPLE)) if text.startswith(EXAMPLE) else prose(text)


def _shell(text: str) -> str:
    return f"```sh\n{text}\n```"


MAKES: Mapping[str, Callable[[str], str]] = {"about": about, "options": options}
TEMPLATE = "---\ntitle: {0}\n---\n\n# ropetool {0}\n\n<!-- made: about {0} -->\n\n<!-- made: options {0} -->\n"


def index() -> str:
    """A line for each command."""
    rows = [(f"[{name}]({name}.md)", summary(command)) for name, command in commands().items()]
    return table(("Command", "What it does"), rows)


def parts() -> dict[str, Callable[[], str]]:
    """What pages can ask for."""
    each = {f"{what} {name}": partial(make, name) for name in commands() for what, make in MAKES.items()}
    return {"commands": index, **each}


def pages() -> dict[str, str]:
    """The page of each command, for where nobody wrote one."""
    return {f"{FOLDER}/{name}.md": TEMPLATE.format(name) for name in commands()}


if __name__ == "__main__":
    for asked in sys.argv[1:] or commands():
        sys.stdout.write(f"# ropetool {asked}\n\n{about(asked)}\n\n{options(asked)}\n\n")
