//! From a filter and the indexes there are to a plan. Pure: no I/O, no locks.
//!
//! * [`choose`]: a plan and those that were not chosen; [`plan`]: the plan alone. [`id_lookup`]: the shortcut for `{_id: x}`, taken before anything else.
//! * [`Plan`] says where candidates come from ([`Access`]), which tests remain on them, and what order
//!   they need.
//! * `interval`: sets of values; `bounds`: which values a predicate can hold for, and the byte
//!   ranges of an index that hold them; `skip`: bounds of later fields, and where the next entry
//!   inside can be; `implied`: whether a filter implies another (partial and sparse indexes);
//!   `field_values`: what a router asks of a filter; `choose`: candidates and their cost; `cells`: of indexes of shapes; `distinct`: scans that go
//!   from value to value.
//! * [`explain`]: a plan as MongoDB's explain prints it.
//!
//! Invariant: the entries inside the bounds, tested with the key filter and the residual, are
//! exactly the matching documents, whatever plan is chosen; property tests compare with testing
//! every document.
//!
//! Architecture invariant: the planner knows neither the store nor the catalog; it sees indexes as
//! [`IndexInfo`].

mod bounds;
mod cells;
mod choose;
mod distinct;
pub mod explain;
mod field_values;
mod hint;
mod implied;
mod interval;
mod order;
mod plan;
mod predicate;
mod query_text;
mod skip;
#[cfg(test)]
mod tests;
mod wildcard;

pub use choose::{choose, plan};
pub use distinct::{Distinct, DistinctRequest};
pub use field_values::{ScalarField, field_values};
pub use implied::implies;
pub use interval::Interval;
pub use plan::{
    Access, Bounds, Branch, CellPrefixes, Choice, Cost, Estimated, Hint, IndexAccess, IndexInfo,
    NearAccess, Plan, PlanRequest, Reads, id_lookup,
};
pub use skip::SkipBounds;

/// The id that explain knows `_id_` by.
pub const ID_INDEX: u32 = 0;
