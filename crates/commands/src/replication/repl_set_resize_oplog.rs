//! `replSetResizeOplog`: how much of the log's past is kept, by size and by age.
//!
//! Source: MongoDB 8 manual, "replSetResizeOplog". Both outlive a restart.

use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use front::idl;
use std::time::Duration;

const AT: &str = "replSetResizeOplog";
/// In megabytes: the second is a petabyte.
const LEAST: f64 = 990.0;
const MOST: f64 = 1_073_741_824.0;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (mut size, mut hours) = (None, None);
    for e in cx.args.fields.clone() {
        match e.name {
            "size" => size = idl::number(AT, e)?,
            "minRetentionHours" => hours = idl::number(AT, e)?,
            _ => return Err(cx.args.unknown(e)),
        }
    }
    in_range("size", size, LEAST, MOST)?;
    in_range("minRetentionHours", hours, 0.0, f64::INFINITY)?;
    if cx.app.config.topology.set_name().is_none() {
        bail!(NamespaceNotFound, "oplog does not exist");
    }
    let mut window = cx.app.store.stats().log_window;
    if let Some(mb) = size {
        window.max_bytes = (mb * f64::from(1 << 20)) as u64;
    }
    if let Some(hours) = hours {
        window.min_age = Duration::try_from_secs_f64(hours * 3600.0).unwrap_or(Duration::MAX);
    }
    cx.app.store.set_log_window(window)?;
    tracing::info!(target: "REPL", id = 20497, size = window.max_bytes, minRetentionHours = hours.unwrap_or(0.0),
        "replSetResizeOplog success");
    Ok(Done::Reply)
}

fn in_range(name: &str, v: Option<f64>, least: f64, most: f64) -> Result<()> {
    let Some(v) = v else { return Ok(()) };
    if v < least || v.is_nan() {
        bail!(
            BadValue,
            "BSON field '{name}' value must be >= {least}, actual value '{v}'"
        );
    }
    if v > most {
        bail!(
            BadValue,
            "BSON field '{name}' value must be <= {most}, actual value '{v}'"
        );
    }
    Ok(())
}
