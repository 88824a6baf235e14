"""Tests that PyTorch wrote for Inductor and AOTAutograd, with this backend in Inductor's place.

The test files come from PyTorch's repository, at the tag of the installed release; they are not part of this project.

    __main__       the command: which tests run, the journal, the table
    driver         runs tests in worker processes, and runs a test that fails again in eager
    worker         one process: loads a test file, runs the tests that it is sent
    substitution   what stands in the place of Inductor
    outcome        what became of a test, and of each graph in it
    page           the table of docs/reports
"""
