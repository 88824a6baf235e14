"""Findings of racecheck, sorted by what they are about."""

from __future__ import annotations

from tests.targets.cuda.gpu.race_findings import find_bulk_copies, sort_findings

SAID = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at k0+0x3590
=========     and Read access at k0+0xe80 [237312 hazards]
=========     and Read access at k0+0xf40 [237312 hazards]
=========
========= Error: Race reported between Read access at k0+0x15e0
=========     and Write access at k0+0x3590 [13840 hazards]
=========
========= Error: Race reported between Write access at k0+0x620
=========     and Read access at k0+0x32f0 [804 hazards]
=========
========= Error: Race reported between Read access at k1+0x3590
=========     and Write access at k0+0x3590 [4 hazards]
=========     and Write access at k0+0x35a0 [4 hazards]
=========
========= RACECHECK SUMMARY: 4 hazards displayed (4 errors, 0 warnings)
"""
CODE = """
        .section        .text.k0,"ax",@progbits
        /*0620*/              @!P0 STS [R2+0x10420], R5 ;
        /*3590*/                   @!UP0 UBLKCP.S.G [UR10], [UR8], UR4, desc[UR6] ;
        .section        .text.k1,"ax",@progbits
        /*3590*/                   LDS R10, [R7+0x10420] ;
"""


def test_bulk_copies_are_found_by_kernel() -> None:
    assert find_bulk_copies(CODE) == {"k0": [0x3590]}


def test_races_between_threads_are_told_from_bulk_copies() -> None:
    found = sort_findings(SAID, find_bulk_copies(CODE))
    assert found.of_bulk_copies == 2
    assert [race.split(" at ")[1].split()[0] for race in found.races] == ["k0+0x620", "k1+0x3590"]


def test_without_the_machine_code_everything_is_a_race() -> None:
    found = sort_findings(SAID, {})
    assert (len(found.races), found.of_bulk_copies) == (4, 0)
