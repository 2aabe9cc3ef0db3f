"""What a report is made of: the results of the verbs on one checkpoint, and on another beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ropetool.checkpoint.results import KeptEvaluation, KeptVerification
    from ropetool.checkpoint.search_results import KeptSearch
    from ropetool.detect import Inspection
    from ropetool.doctor import Diagnosis
    from ropetool.families.reading import Warn
    from ropetool.report import Spectrum


@dataclass(frozen=True)
class Subject:
    """One checkpoint. Where there is no spectrum or no diagnosis, the sentence beside it says why."""

    inspection: Inspection
    spectrum: Spectrum | None
    no_spectrum: str
    diagnosis: Diagnosis | None
    no_diagnosis: str


@dataclass(frozen=True)
class Report:
    """Everything that is shown; ``written`` are the files that were made of it."""

    subject: Subject
    against: Subject | None = None
    verification: KeptVerification | None = None
    evaluation: KeptEvaluation | None = None
    search: KeptSearch | None = None
    warnings: tuple[Warn, ...] = ()
    written: tuple[str, ...] = ()
