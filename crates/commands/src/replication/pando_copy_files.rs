//! `pandoCopyFiles`: the files of this member, for one that the log does not reach any more.
//!
//! ```text
//! {pandoCopyFiles: "begin", set: <name>, setId: <ObjectId>, member: <long>, known: <ObjectId>}   an offer
//! {pandoCopyFiles: "read", id: <ObjectId>, file: <name>, offset: <long>, whole: <bool>}
//!                                              {bytes: <binary>, checksum: <long>, waitMillis: <long>}
//! {pandoCopyFiles: "end", id: <ObjectId>}
//! ```
//!
//! Invariant: only members of the set with what they agreed on are offered anything.

use crate::request::{CommandContext, Done};
use crate::settings::parameters::INITIAL_SYNC_RATE;
use errors::{Result, bail};
use front::idl;

const AT: &str = "pandoCopyFiles";

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let Some(driver) = cx.app.replica.clone() else {
        bail!(NoReplicationEnabled, "not running with --replSet");
    };
    let what = cx.args.first.as_str().unwrap_or_default();
    let id = cx.args.field("id").and_then(|v| v.as_oid());
    match what {
        "begin" => begin(cx, &driver),
        "read" => {
            let id = idl::required(AT, "id", id)?;
            let file = cx.args.field("file").and_then(|v| v.as_str());
            let file = idl::required(AT, "file", file)?;
            let offset = cx.args.field("offset").and_then(|v| v.to_i64_exact());
            let Ok(offset) = u64::try_from(idl::required(AT, "offset", offset)?) else {
                bail!(BadValue, "offset must not be negative");
            };
            let whole = cx.args.field("whole").is_some_and(|v| v.truthy());
            let rate = cx.app.parameters.int(INITIAL_SYNC_RATE).unsigned_abs() << 20;
            let read = |out: &mut Vec<u8>| driver.copies().read(id, file, offset, rate, out);
            let mut about = Default::default();
            if whole {
                cx.w.binary_with("bytes", 0, |out| read(out).map(|read| about = read))?;
            } else {
                about = read(&mut Vec::new())?;
                cx.w.binary("bytes", 0, &[]);
            }
            cx.w.i64("checksum", i64::from(about.checksum))
                .i64("waitMillis", about.wait.as_millis() as i64);
            Ok(Done::Reply)
        }
        "end" => {
            driver.copies().end(idl::required(AT, "id", id)?);
            Ok(Done::Reply)
        }
        _ => bail!(BadValue, "{AT} wants \"begin\", \"read\" or \"end\""),
    }
}

fn begin(cx: &mut CommandContext<'_, '_>, driver: &replication::Driver) -> Result<Done> {
    let status = driver.status();
    let set = cx.args.field("setId").and_then(|v| v.as_oid());
    let config = status.config.as_ref();
    let ours = config.and_then(|c| c.settings.replica_set_id);
    let member = cx.args.field("member").and_then(|v| v.to_i64_exact());
    let member = idl::required(AT, "member", member)?.unsigned_abs();
    if ours.is_none() || set != ours || status.member(member).is_none() {
        bail!(
            InvalidReplicaSetConfig,
            "only members of this replica set copy its files"
        );
    }
    if status.is_copying {
        bail!(
            NotPrimaryOrSecondary,
            "this member copies the files of another itself"
        );
    }
    let known = cx.args.field("known").and_then(|v| v.as_oid());
    let offer = driver.copies().begin(member, known, || driver.status())?;
    cx.w.doc("offer", offer.to_doc().as_doc());
    Ok(Done::Reply)
}
