# Shortcuts for contributors; CONTRIBUTING.md says how long each takes. `just` comes with `pip install rust-just`.

bin := env("PANDO_BIN", justfile_directory() / "target/debug/pando")

# What there is
default:
    @just --list

# One crate: formatting, lints and its tests. With the server, whose features keep RocksDB from being compiled anew
one crate *args:
    cargo fmt --package {{crate}} --check
    cargo clippy --package {{crate}} --package pando --all-targets --locked -- -D warnings
    cargo test --package {{crate}} --package pando --locked {{args}}

# One file of tests/python against the built server: just python find_and_modify
python file *args: server
    PANDO_BIN={{bin}} .venv/bin/python -m pytest tests/python/test_{{file}}.py -q {{args}}

# The server for the tests
server:
    cargo build --package pando --locked

# What shows most mistakes soonest: formatting, the whole workspace checked, the links of the documents
quick:
    cargo fmt --all --check
    cargo check --workspace --all-targets --locked
    python3 scripts/check_documents.py
    python3 scripts/tidy.py
    python3 scripts/reference.py --check

# Everything, as CI runs it
all:
    scripts/test.sh

# The book of the documents, and each of its links
book:
    scripts/book.py
