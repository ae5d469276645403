//! `pandoBackup`: a consistent copy of all data, taken while the server goes on, that is itself a
//! data directory.
//!
//! `{pandoBackup: 1, path: "/an/absolute/path"}`. On one file system the copy shares the data files
//! (they are never changed), so it takes no space at first. The path is that of the server's
//! machine and must not exist.

use crate::request::idl;
use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use std::path::Path;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let at = "pandoBackup";
    let mut path = None;
    for e in cx.args.fields.clone() {
        match e.name {
            "path" => path = idl::string(at, e)?,
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let path = Path::new(idl::required(at, "path", path)?);
    if !path.is_absolute() {
        bail!(
            BadValue,
            "the path of a backup must be absolute, not '{}'",
            path.display()
        );
    }
    if path.exists() {
        bail!(BadValue, "{} exists already", path.display());
    }
    let store = &cx.app.store;
    let index = store.last_index();
    store.checkpoint(path)?;
    cx.w.str("path", &path.to_string_lossy())
        .i64("files", store_files(path) as i64);
    // Everything up to here is in it; what was written meanwhile may be.
    cx.w.i64("index", index as i64);
    Ok(Done::Reply)
}

fn store_files(path: &Path) -> usize {
    std::fs::read_dir(path.join("engine")).map_or(0, Iterator::count)
}
