//! BSON as bytes: views, builders, validation, cross-type order and memcomparable keys.
//!
//! A document is its bytes everywhere in PandoDB; nothing here builds a tree of values.
//!
//! * [`Doc`], [`Val`], [`Elem`]: borrowed views. A view never panics whatever the bytes are: iteration over malformed bytes
//!   just ends. Bytes from a socket go through [`validate`] once, at the door.
//! * [`DocBuf`], [`Value`], [`Writer`]: owned document, owned value, and the one way to build either.
//! * [`order`]: MongoDB's comparison order over all types. [`key`]: bytes whose `memcmp` order is that order.
//! * [`json`]: Extended JSON, for logs, tests and people; not for hot paths.
//!
//! Architecture invariant: this crate knows nothing of queries, commands or storage.

pub mod decimal;
pub mod hex_text;
pub mod json;
pub mod key;
pub mod oid;
pub mod order;
mod owned;
pub mod shell;
pub mod tag;
mod validate;
mod view;
mod writer;

pub use decimal::Decimal128;
pub use oid::ObjectId;
pub use owned::{DocBuf, Value};
pub use validate::{Malformed, nests_deeper, validate, validate_with_depth};
pub use view::{Doc, Elem, Iter, Val, same_name};
pub use writer::Writer;

/// The largest document a user may store, in bytes.
pub const MAX_DOC_BYTES: usize = 16 * 1024 * 1024;
/// The deepest nesting of documents and arrays that is stored, the document itself counted: MongoDB's limit in fact, where its
/// manual says 100.
pub const MAX_DEPTH: usize = 180;

/// Builds a [`DocBuf`]: `doc! { "a": 1, "b": "x", "c": doc!{} }`; values are anything `Into<Value>`.
#[macro_export]
macro_rules! doc {
    () => { $crate::DocBuf::default() };
    ($($name:literal : $value:expr),+ $(,)?) => {{
        let mut w = $crate::Writer::new();
        $( w.val($name, $crate::Value::from($value).as_val()); )+
        w.finish()
    }};
}

/// Builds an array [`Value`]: `array![1, "x", doc!{}]`.
#[macro_export]
macro_rules! array {
    ($($value:expr),* $(,)?) => {{
        #[allow(unused_mut)]
        let mut w = $crate::Writer::new_array();
        $( w.push($crate::Value::from($value).as_val()); )*
        w.finish_array()
    }};
}
