//! What the servers that a configuration brings in say of it, before it is written: one that belongs
//! to another set, or has data of its own, would never join. One that does not answer may come later.

use errors::{Error, Fallible, err};
use replication::config::MemberConfig;
use replication::member::raft_id;
use replication::{Config, Driver, SetName};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// How long the servers may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Asks all members that `is_new` is true of, at once; the first error of one that refuses.
pub fn ask(
    driver: &Driver,
    config: &Config,
    is_new: impl Fn(&MemberConfig) -> bool,
) -> Fallible<()> {
    let (answer, answers) = channel();
    let set = SetName {
        name: driver.set_name().to_string(),
        id: config.settings.replica_set_id.map_or([0; 12], |id| id.0),
        ..SetName::default()
    };
    let mut open = 0;
    for member in config.members.iter().filter(|m| is_new(m)) {
        let (driver, answer, set) = (driver.clone(), answer.clone(), set.clone());
        let (host, id) = (member.host.to_string(), raft_id(member.id));
        let asks = move || {
            let _ = answer.send(driver.joins(&set, &host, id).map_err(|e| explain(&host, e)));
        };
        let begun = std::thread::Builder::new()
            .name("quorum-check".into())
            .spawn(asks);
        open += usize::from(begun.is_ok());
    }
    let until = Instant::now() + PATIENCE;
    for _ in 0..open {
        let rest = until.saturating_duration_since(Instant::now());
        match answers.recv_timeout(rest) {
            Ok(Err(Some(e))) => return Err(e),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    Ok(())
}

/// In MongoDB's words; `None` where the server has not said that it cannot join.
fn explain(host: &str, e: Error) -> Option<Error> {
    use errors::Code;
    match e.code {
        Code::InconsistentReplicaSetNames => Some(err!(
            NewReplicaSetConfigurationIncompatible,
            "Our set name did not match that of {host}"
        )),
        Code::InvalidReplicaSetConfig => Some(err!(
            NewReplicaSetConfigurationIncompatible,
            "{host} cannot join this replica set :: caused by :: {}",
            e.message
        )),
        _ => None,
    }
}
