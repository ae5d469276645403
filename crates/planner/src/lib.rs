//! From a filter and the indexes there are to a plan. Pure: no I/O, no locks.
//!
//! * [`plan`]: chooses. [`id_lookup`]: the shortcut for `{_id: x}`, taken before anything else.
//! * [`Plan`] says where candidates come from ([`Access`]), what is still to be tested on them, and what order they need.
//! * Index bounds are exact in bytes: [`Bounds`].
//!
//! Architecture invariant: the planner knows neither the store nor the catalog; it sees indexes as [`IndexInfo`].

mod plan;

pub use plan::{Access, Bounds, Check, Hint, IndexAccess, IndexInfo, Plan, PlanRequest, id_lookup, plan};
