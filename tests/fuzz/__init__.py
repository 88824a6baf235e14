"""Random programs against eager: generators, and a driver that runs many of them in child processes.

    python -m tests.fuzz networks --count 20000 --jobs 2 --journal build/fuzz_networks.jsonl
    python -m tests.fuzz networks --journal build/fuzz_networks.jsonl --report docs/reports/fuzz_networks.md

A generator is a module of this folder with `make(seed)` and `check(seeds)`; `driver.KINDS` lists them.
`grammars` has what their programs are made of.
"""
