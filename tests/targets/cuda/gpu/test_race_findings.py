"""Findings of racecheck, sorted by what they are about."""

from __future__ import annotations

from tests.targets.cuda.gpu.race_findings import find_ordered, sort_findings

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
========= Error: Race reported between Write access at k0+0x700
=========     and Read access at k0+0x32f0 [804 hazards]
=========
========= RACECHECK SUMMARY: 5 hazards displayed (5 errors, 0 warnings)
"""
CODE = """
        .section        .text.k0,"ax",@progbits
        /*0620*/              @!P0 STS [R2+0x10420], R5 ;
        /*0700*/                   ATOMS.EXCH R3, [R2], R4 ;
        /*3590*/                   @!UP0 UBLKCP.S.G [UR10], [UR8], UR4, desc[UR6] ;
        .section        .text.k1,"ax",@progbits
        /*3590*/                   LDS R10, [R7+0x10420] ;
"""


def test_copies_and_polled_words_are_found_by_kernel() -> None:
    assert find_ordered(CODE) == {"k0": [0x700, 0x3590]}


def test_races_are_told_from_what_has_an_order() -> None:
    found = sort_findings(SAID, find_ordered(CODE))
    assert found.unordered == 3 and not found.is_cut_off
    assert [race.split(" at ")[1].split()[0] for race in found.races] == ["k0+0x620", "k1+0x3590"]


def test_without_the_machine_code_everything_is_a_race() -> None:
    found = sort_findings(SAID, {})
    assert (len(found.races), found.unordered) == (5, 0)


def test_a_list_that_was_cut_off_says_so() -> None:
    note = "========= Warning: Maximum number of hazards reached. Environment variable NV_X can be used.\n"
    assert sort_findings(note + SAID, find_ordered(CODE)).is_cut_off
