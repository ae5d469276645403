//! Nothing: the tests of the Rust driver stand in `tests/`.
