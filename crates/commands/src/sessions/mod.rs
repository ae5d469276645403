//! Commands on logical sessions, and on transactions.

pub mod end_sessions;
pub mod kill_sessions;
pub mod start_session;
pub mod transactions;

use crate::request::idl;
use bson::{Doc, Elem, Val};
use errors::{Result, bail};
use session::Lsid;

/// The ids of an array of `{id: <uuid>}`.
fn ids(command: &'static str, v: Val<'_>) -> Result<Vec<Lsid>> {
    let Some(list) = v.as_array() else {
        if v.is_nullish() {
            return Err(idl::missing(command, command));
        }
        return Err(idl::mismatch(command, command, v, &["array"]));
    };
    let mut all = Vec::new();
    for (i, v) in list.values().enumerate() {
        let Some(d) = v.as_doc() else {
            if v.is_nullish() {
                continue;
            }
            bail!(
                TypeMismatch,
                "BSON field '{command}.{command}.{i}' is the wrong type '{}', expected type 'object'",
                v.type_name()
            );
        };
        all.extend(id(command, d)?);
    }
    Ok(all)
}

fn id(command: &str, d: Doc<'_>) -> Result<Option<Lsid>> {
    let mut id = None;
    for e in d {
        let e: Elem<'_> = e;
        match e.name {
            "id" => id = idl::uuid(command, e)?,
            "uid" => {}
            name => return Err(idl::unknown(command, name)),
        }
    }
    idl::required(command, "id", id).map(Some)
}
