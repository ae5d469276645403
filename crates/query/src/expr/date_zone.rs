//! Time zones.
