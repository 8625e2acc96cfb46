"""The measures that claims refer to by name: small functions of the evidence that give a number, or a number
and the contestant that reached it.
"""

from rooflab.claims.measures import house, lessons, rows

__all__ = ["MEASURES", "UNMEASURED", "house", "lessons", "rows"]

MEASURES, UNMEASURED = rows.MEASURES, rows.UNMEASURED
