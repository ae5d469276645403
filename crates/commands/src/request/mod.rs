//! A request on its way: dispatch, admission, accounting.

mod accounting;
mod admission;
mod dispatch;

pub use admission::operation;
pub use dispatch::Call;
