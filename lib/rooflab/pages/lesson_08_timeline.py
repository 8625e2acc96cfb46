"""What lesson 08's page shows of a token taken apart inside the kernel."""

from __future__ import annotations

from rooflab.lab import Lab
from rooflab.studies import decode
from rooflab.view import diagram, display


def blocks_over_time(lab: Lab) -> None:
    """Draw a layer block by block by each rung that was timed so; say where none was."""
    asked = lab.held("decode", decode.timed(lab.sized), "timeline")
    found = lab.profile("decode", asked, "timeline") if asked else None
    if found is None or found.empty:
        names = ", ".join(f"`{case.impl}`" for case in decode.timed(lab.sized))
        display.say(f"On the {lab.run.gpu} this is not yet measured of {names}.")
        return
    diagram.blocks(found).show()
