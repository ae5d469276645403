//! `pando backup --follow`: the logs of all sets flow into the archive, so that a loss of all machines costs
//! the last seconds only.
//!
//! It needs no lock of the archive: pieces of a line that has a backup stay as long as that does.
//!
//! Invariant: after each round all logs of a cluster reach to one time at least, so each can be gone back to.

use super::log_keeper::LogKeeper;
use super::make;
use super::remote::LogFailure;
use crate::client::{Conversation, ServerAddress};
use archive::Archive;
use std::time::Duration;

/// Runs until the process is ended. Whatever fails is tried again: a server that is gone comes back.
pub(super) fn follow<'a>(
    address: &ServerAddress,
    (archive, place): (&'a Archive, &str),
    mut logs: Vec<LogKeeper<'a>>,
    interval: Duration,
) -> Result<String, String> {
    let mut failing = false;
    let mut conversation = None;
    loop {
        std::thread::sleep(interval);
        match round(address, &mut conversation, &mut logs) {
            Ok(()) => {
                if failing {
                    eprintln!("pando: the log flows again");
                }
                failing = false;
            }
            Err(LogFailure::Failed(why)) => {
                if !failing {
                    eprintln!("pando: the log does not flow, trying again: {why}");
                }
                (failing, conversation) = (true, None);
            }
            Err(LogFailure::Another(why)) => {
                eprintln!("pando: the log is another one, so there is another backup: {why}");
                match make::make(address, archive, place) {
                    Ok(made) => logs = made.logs,
                    Err(why) => eprintln!("pando: no backup was made, trying again: {why}"),
                }
                conversation = None;
            }
        }
    }
}

fn round(
    address: &ServerAddress,
    conversation: &mut Option<Conversation>,
    logs: &mut [LogKeeper<'_>],
) -> Result<(), LogFailure> {
    if conversation.is_none() {
        *conversation = Some(address.open().map_err(LogFailure::Failed)?);
    }
    let Some(c) = conversation else {
        return Ok(());
    };
    let mut any = false;
    for log in logs.iter_mut() {
        any |= log.pull(c, 0)?;
    }
    let newest = logs.iter().map(|log| log.last.ts).max().unwrap_or(0);
    // Where nothing was written anywhere, nothing needs to go on.
    for log in logs.iter_mut().filter(|log| any && log.last.ts < newest) {
        log.pull(c, newest)?;
    }
    Ok(())
}
