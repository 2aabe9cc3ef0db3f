"""Every error ropetool raises on purpose, in one tree.

::

    RopetoolError                  exit 2, unless said otherwise
    ├── UsageError                 the command line asks for something that cannot be
    │   └── DeviceMemoryError      a device has too little memory for what is asked
    ├── CheckpointError            the files of a checkpoint
    │   ├── MissingFileError       a file that must be there is not
    │   ├── ShardError             a .safetensors file whose header lies, or that is cut short
    │   ├── IndexFileError         the index disagrees with the shards
    │   ├── PickleFileError        a .bin or .pth file that is not plain tensors by name
    │   ├── ShapeError             a tensor's shape does not fit the config
    │   ├── UnclaimedTensorError   an attention tensor that no row of the family table names
    │   ├── NotFetchedError        data of a shard of which only the header is here
    │   ├── SourceChangedError     a file that changed while it was read
    │   ├── HalfConvertedError     a conversion in place was interrupted: to be finished or taken back first
    │   ├── JournalError           the journal of a conversion in place cannot be used
    │   └── LinkedFileError        a file to be changed in place that is known by other names
    ├── BusyError                  another process changes the directory, or reads what is to be changed
    ├── HubError                   a repository at the Hub, or the way to it
    │   ├── HubNotFoundError       no such repository, revision or file, or none that one may see
    │   ├── HubAccessError         gated, forbidden, or a token that is not accepted
    │   ├── HubOfflineError        the Hub cannot or must not be reached, and the cache has not what is needed
    │   └── HubTransferError       a file did not arrive whole
    ├── ServerError                a server of a model, and what it answers
    │   ├── ServerUnreachableError it cannot be reached, or ends the connection
    │   ├── ServerTimeoutError     no whole answer within the time
    │   ├── ServerRefusalError     it answers with an error, or with another address
    │   └── ServerAnswerError      an answer that cannot be used
    ├── ConfigError                a value in a JSON file that cannot be used
    │   └── ConfigConflictError    two keys that disagree
    ├── UnsupportedError           understood, and refused
    │   ├── UnknownFamilyError     a model type outside the table
    │   ├── NoRotaryError          the model has no rotary embedding
    │   ├── TwinError              a class of the other layout that cannot express this model
    │   ├── QuantisedError         a quantised form whose rows cannot be moved exactly
    │   └── MethodError            a scaling method that this model or checkpoint cannot take
    ├── EncodingError              what a position encoding is given cannot be (also a ValueError)
    │   └── PositionError          a position outside a table or cache (also an IndexError)
    ├── AlreadyConvertedError      the checkpoint has the wanted layout
    ├── LayoutContradictedError    what was measured of the weights is not what is declared of them
    ├── NotVerifiedError           what was made did not pass its check (exit 1)
    ├── InternalError              a fault of ropetool itself
    └── OutputError                the place to write to
        ├── OutputExistsError
        └── NoSpaceError

A message says what is wrong, where, with the numbers, and what to do next. The same facts are in
``fields``, which ``--json`` prints beside the message. Names and values in it come from strangers' files: it is one
line, of `MOST_CHARACTERS` at most, and holds nothing that a terminal would obey.
"""

from __future__ import annotations

from typing import Any

MOST_CHARACTERS = 2000


def printable(text: str) -> str:
    """``text`` with what is no visible character written as an escape, so that no terminal takes it for a command."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _shortened(text: str) -> str:
    half = MOST_CHARACTERS // 2
    return text if len(text) <= MOST_CHARACTERS else f"{text[:half]} ... {text[-half:]}"


class RopetoolError(Exception):
    """Base of all deliberate errors: a sentence for a person, a code and fields for a script."""

    code = "error"
    exit_code = 2

    def __init__(self, message: str, **fields: Any) -> None:
        self.message = printable(_shortened(message))
        super().__init__(self.message)
        self.fields = fields


class UsageError(RopetoolError):
    """The command line asks for something that cannot be."""

    code = "usage"


class DeviceMemoryError(UsageError):
    """A device has too little memory for what is asked, whatever way it is tried."""

    code = "out-of-memory"


class CheckpointError(RopetoolError):
    """The files of a checkpoint cannot be used."""

    code = "bad-checkpoint"


class MissingFileError(CheckpointError):
    """A file that must be there is not."""

    code = "missing-file"


class ShardError(CheckpointError):
    """A .safetensors file whose header lies, or that is cut short."""

    code = "bad-shard"


class IndexFileError(CheckpointError):
    """The index disagrees with the shards."""

    code = "bad-index"


class PickleFileError(CheckpointError):
    """A .bin or .pth file that is not plain tensors by name, or that only code could load."""

    code = "bad-pickle"


class ShapeError(CheckpointError):
    """A tensor's shape does not fit the config."""

    code = "shape-mismatch"


class UnclaimedTensorError(CheckpointError):
    """An attention tensor that no row of the family table names."""

    code = "unclaimed-tensor"


class NotFetchedError(CheckpointError):
    """Data of a shard of which only the header is here; ``fields`` names the repository that has it."""

    code = "not-fetched"


class SourceChangedError(CheckpointError):
    """A file changed while it was read; ``fields`` names it."""

    code = "source-changed"


class HalfConvertedError(CheckpointError):
    """A conversion in place was interrupted; ``fields`` has the commands that finish it or take it back."""

    code = "half-converted"


class JournalError(CheckpointError):
    """The journal of a conversion in place is not there, is damaged, or does not fit the files beside it."""

    code = "bad-journal"


class LinkedFileError(CheckpointError):
    """A file to be changed in place is a link, or has other names; ``fields`` has their number."""

    code = "linked-file"


class BusyError(RopetoolError):
    """Another process has the directory; ``fields`` has its pid, its command and since when it runs."""

    code = "busy"


class HubError(RopetoolError):
    """A repository at the Hub, or the way to it; ``fields`` names the id, the revision and the endpoint."""

    code = "hub"


class HubNotFoundError(HubError):
    """No such repository, revision or file, or none that one may see."""

    code = "hub-not-found"


class HubAccessError(HubError):
    """The repository is gated or forbidden, or the token is not accepted."""

    code = "hub-access"


class HubOfflineError(HubError):
    """The Hub cannot be reached, or must not be, and the cache has not what is needed."""

    code = "hub-offline"


class HubTransferError(HubError):
    """A file did not arrive whole."""

    code = "hub-transfer"


class ServerError(RopetoolError):
    """A server of a model, and what it answers; ``fields`` names the address."""

    code = "server"


class ServerUnreachableError(ServerError):
    """The server cannot be reached, or ends the connection before its answer."""

    code = "server-unreachable"


class ServerTimeoutError(ServerError):
    """No whole answer came within the time."""

    code = "server-timeout"


class ServerRefusalError(ServerError):
    """The server answers with an error, or with another address; ``fields`` has the status."""

    code = "server-refusal"


class ServerAnswerError(ServerError):
    """An answer that cannot be used: no JSON, JSON of another shape, or no log-probabilities."""

    code = "server-answer"


class ConfigError(RopetoolError):
    """A value in a JSON file that cannot be used; ``fields`` names the key."""

    code = "bad-config"


class ConfigConflictError(ConfigError):
    """Two keys that disagree; ``fields`` names both with their values."""

    code = "config-conflict"


class UnsupportedError(RopetoolError):
    """Understood, and refused."""

    code = "unsupported"


class UnknownFamilyError(UnsupportedError):
    """A model type outside the table."""

    code = "unknown-family"


class NoRotaryError(UnsupportedError):
    """The model has no rotary position embedding."""

    code = "no-rope"


class TwinError(UnsupportedError):
    """A class of the other layout that cannot express this model; ``fields`` names the key."""

    code = "no-twin"


class QuantisedError(UnsupportedError):
    """A quantised form whose rows cannot be moved exactly."""

    code = "quantised"


class MethodError(UnsupportedError):
    """A scaling method that this model or checkpoint cannot take."""

    code = "method"


class EncodingError(RopetoolError, ValueError):
    """What a position encoding is given cannot be: an odd width, shapes that do not fit; ``fields`` has the numbers."""

    code = "bad-encoding"


class PositionError(EncodingError, IndexError):
    """A position outside a table or cache; ``fields`` has it, and the number of rows."""

    code = "position"


class AlreadyConvertedError(RopetoolError):
    """The checkpoint already has the wanted layout."""

    code = "already-converted"


class LayoutContradictedError(RopetoolError):
    """What was measured of the weights is not what is declared; ``fields`` has what each witness says."""

    code = "layout-contradicted"


class NotVerifiedError(RopetoolError):
    """What was made did not pass its check, and was not kept."""

    code = "not-verified"
    exit_code = 1


class InternalError(RopetoolError):
    """A fault of ropetool itself, so that it is never taken for a check that failed."""

    code = "internal"


class OutputError(RopetoolError):
    """The place to write to cannot be used."""

    code = "bad-output"


class OutputExistsError(OutputError):
    """The output is already there."""

    code = "output-exists"


class NoSpaceError(OutputError):
    """The file system has no room for the output."""

    code = "no-space"
