//! `createSearchIndexes`, `updateSearchIndex`, `dropSearchIndex` and `listSearchIndexes`: a MongoDB without its search
//! server refuses them all alike, whatever they say.

use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use query::pipeline::SEARCH_INDEXES_NOT_ENABLED;

pub fn run(_: &mut CommandContext<'_, '_>) -> Result<Done> {
    bail!(SearchNotEnabled, "{SEARCH_INDEXES_NOT_ENABLED}")
}
