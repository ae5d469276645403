//! `pando lab study aggregate`: study G, pipelines over documents of 1 KB against the same in SQL over JSONB.
//!
//! The documents are made by the database itself out of their numbers, so all targets have the same. Each query is
//! measured by itself; targets take turns query by query. A query may use several cores: PostgreSQL has the
//! parallel workers that its settings allow, two beside the query's own process unless they were changed.

use crate::fault::{Fault, Result};
use crate::queries::{self, File, How, Steps};
use crate::report::Draft;
use crate::terms::count;

#[derive(clap::Args)]
pub struct Args {
    /// Documents of 1 KB.
    #[arg(long, default_value = "300k", value_parser = count)]
    pub documents: u64,
    /// Connections, each with one query under way; a list runs one after the other.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub connections: Vec<usize>,
    #[command(flatten)]
    pub how: How,
}

const QUERIES: &str = include_str!("aggregate.queries");

pub fn main(args: Args) -> Result<bool> {
    let documents = i64::try_from(args.documents).ok().filter(|n| *n > 0);
    let Some(documents) = documents else {
        return Err(Fault::Usage("--documents must be more than zero".into()));
    };
    let defined = [
        ("documents".to_string(), documents),
        ("third".to_string(), documents / 3),
    ];
    let file = File::parse(QUERIES, &defined)?;
    let mut draft = Draft::new("study", "G-aggregate");
    draft.set("documents", documents);
    queries::run(&args.how, &file, draft, &args.connections, Steps::Apart)
}
