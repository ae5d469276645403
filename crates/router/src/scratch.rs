//! Commands of the router's own, or of a user's, that its scratch server answers.

use crate::request::RoutedCommand;
use crate::router::Router;
use bson::{DocBuf, doc};
use cluster_view::reply::sound;
use cluster_view::{Failure, Outcome, operation_time};
use commands::LoggedIn;
use errors::Code;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Fails where a server would refuse the arguments of a command: the scratch server says so, which
/// has nothing. Errors with a code of `lacks` say no more than that.
pub(crate) fn check_arguments(
    router: &Router,
    command: &RoutedCommand<'_>,
    lacks: &[Code],
) -> Outcome<()> {
    if command.in_transaction() {
        return Ok(());
    }
    match compute_for(router, command.user.clone(), &command.whole()) {
        Err(Failure::Client(e)) if lacks.contains(&e.code) => Ok(()),
        outcome => outcome.map(drop),
    }
}

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

/// A collection of the scratch server, which goes with this.
pub(crate) struct Scratch<'r> {
    router: &'r Router,
    db: &'r str,
    name: String,
}

static NUMBER: AtomicU64 = AtomicU64::new(0);

impl<'r> Scratch<'r> {
    pub fn new(router: &'r Router, db: &'r str) -> Scratch<'r> {
        Scratch {
            router,
            db,
            name: format!("scratch{}", NUMBER.fetch_add(1, Ordering::Relaxed)),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let _ = compute(self.router, &doc! {"drop": &self.name, "$db": self.db});
    }
}
