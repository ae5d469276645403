//! bson
