//! `local.system.replset`, where shells and tools look for the configuration of the set: a collection
//! of one document, which is made when it is read.
//!
//! Invariant: it is read only, and as pipelines are: what asks for it runs behind [`stage`].

use crate::request::CommandContext;
use crate::topology::own_config::config;
use bson::{DocBuf, Writer};

const NS: &str = "local.system.replset";

/// The stage that gives the collection's documents, if `ns` is it.
pub fn stage(cx: &CommandContext<'_, '_>, ns: &str) -> Option<DocBuf> {
    if ns != NS {
        return None;
    }
    let config = config(cx)?;
    let mut w = Writer::new();
    w.open_array("$documents");
    w.open_doc("").extend(config.as_doc()).close();
    w.close();
    Some(w.finish())
}
