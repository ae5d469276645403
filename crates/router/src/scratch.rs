//! Commands of users that the server answers which the router embeds.

use crate::state::Router;
use bson::DocBuf;
use cluster_view::reply::sound;
use cluster_view::{Outcome, operation_time};
use commands::LoggedIn;
use std::sync::Arc;

/// What that server says to a user's command.
pub(crate) fn compute_for(
    router: &Router,
    user: Option<Arc<LoggedIn>>,
    command: &DocBuf,
) -> Outcome<DocBuf> {
    let shorter = operation_time::shortened(command.as_doc());
    let command = shorter.as_ref().unwrap_or(command);
    sound(router.local.run_own(user, command.as_doc())?)
}
