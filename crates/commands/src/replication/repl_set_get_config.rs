//! `replSetGetConfig`.

use super::set_name;
use crate::request::{CommandContext, Done};
use crate::topology::own_config::config;
use errors::{Result, bail};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    set_name(cx)?;
    let Some(config) = config(cx) else {
        bail!(NotYetInitialized, "no replset config has been received");
    };
    cx.w.doc("config", config.as_doc());
    Ok(Done::Reply)
}
