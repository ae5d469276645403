//! Commands of the router's own, or of a user's, that its scratch server answers.

use crate::state::Router;
use bson::DocBuf;
use cluster_view::reply::sound;
use cluster_view::{Outcome, operation_time};
use commands::LoggedIn;
use std::sync::Arc;

/// What the scratch server says to a command of the router's own.
pub(crate) fn compute(router: &Router, command: &DocBuf) -> Outcome<DocBuf> {
    let own = router.local.own_user()?;
    compute_for(router, own, command)
}

/// What the scratch server says to a user's command.
pub(crate) fn compute_for(
    router: &Router,
    user: Option<Arc<LoggedIn>>,
    command: &DocBuf,
) -> Outcome<DocBuf> {
    let shorter = operation_time::shortened(command.as_doc());
    let command = shorter.as_ref().unwrap_or(command);
    sound(router.local.run_own(user, command.as_doc())?)
}
