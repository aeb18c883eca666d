"""Images of a verified schedule and its program on machines that are its own one with the ranks renamed, verified as images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taccl_py.errors import require_verdict
from taccl_py.lowering.images import image_of_program
from taccl_py.lowering.msccl_xml import emit_xml
from taccl_py.pipeline.deliver import Lowered
from taccl_py.runtimes import Runtime
from taccl_py.schedule.image import OF_NO_RANK, image_of_schedule
from taccl_py.schedule.ir import Schedule
from taccl_py.topology.model import Topology
from taccl_py.verify.image import verify_image, verify_program_image


def verified_image(schedule: Schedule, topology: Topology, renaming: Sequence[int]) -> Schedule:
    """Image of a valid schedule on a machine, see `image_of_schedule`.

    Raises
    ------
    InvalidArtifact
        If the verifier does not agree that it is one.
    """
    image = image_of_schedule(schedule, topology, renaming)
    require_verdict("schedule", verify_image(image, schedule, renaming))
    return image


class LoweredImages:
    """Images of a verified program."""

    def __init__(self, lowered: Lowered, runtime: Runtime) -> None:
        self._lowered, self._runtime = lowered, runtime
        # Steps of images are those of the program itself where data belongs to no rank, and then are written once.
        self._written: dict[int, str] | None = {} if lowered.program.kind in OF_NO_RANK else None

    def of(self, renaming: Sequence[int]) -> Lowered | None:
        """The program with rank r renamed ``renaming[r]``; None if its steps would be torn apart.

        Raises
        ------
        InvalidArtifact
            If the verifier does not agree that it is an image.
        """
        known = self._lowered
        program = image_of_program(known.program, renaming)
        if program is None:
            return None
        text = emit_xml(program, self._runtime, self._written)
        require_verdict("algorithm.xml", verify_program_image(text, known.text, renaming, program.known_kind))
        return replace(known, program=program, text=text)
