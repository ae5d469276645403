//! `pando lab study tpch`: study I, queries of the kind that TPC-H asks, as pipelines over seven collections, against the same
//! in SQL over tables.
//!
//! The rows are made by the database itself out of their numbers, in TPC-H's shape and proportions but with numbers for days
//! and amounts, so all targets have the same; they are not those of TPC-H's own generator, and figures are not to be compared
//! with published ones. Each query is measured by itself; targets take turns query by query. A query may use several cores:
//! PostgreSQL has the parallel workers that its settings allow.

use crate::fault::{Fault, Result};
use crate::queries::{self, File, How, Steps};
use crate::report::Draft;
use crate::terms::count;

#[derive(clap::Args)]
pub struct Args {
    /// Orders, of four lines each: 150k is TPC-H's scale 0.1.
    #[arg(long, default_value = "150k", value_parser = count)]
    pub orders: u64,
    /// Connections, each with one query under way; a list runs one after the other.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub connections: Vec<usize>,
    #[command(flatten)]
    pub how: How,
}

const QUERIES: &str = include_str!("tpch.queries");
/// Fewer orders have fewer suppliers than one.
const FEWEST_ORDERS: i64 = 150;

pub fn main(args: Args) -> Result<bool> {
    let orders = i64::try_from(args.orders)
        .ok()
        .filter(|n| (FEWEST_ORDERS..=i64::MAX / 4).contains(n));
    let Some(orders) = orders else {
        return Err(Fault::Usage(format!(
            "--orders must be {FEWEST_ORDERS} or more"
        )));
    };
    let defined = [
        ("orders", orders),
        ("lines", orders * 4),
        ("customers", orders / 10),
        ("parts", orders / 15 * 2),
        ("suppliers", orders / 150),
    ];
    let defined = defined.map(|(name, n)| (name.to_string(), n));
    let file = File::parse(QUERIES, &defined)?;
    let mut draft = Draft::new("study", "I-tpch");
    draft.set("orders", orders);
    queries::run(&args.how, &file, draft, &args.connections, Steps::Apart)
}
