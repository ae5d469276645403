//! Operators over dates.

use super::table::Op;

pub(super) const OPS: &[Op] = &[];
