//! What each operation of a `bulkWrite` does, and to what.

use crate::idl;
use bson::{Doc, Elem};
use errors::{Result, err};

const AT: &str = "bulkWrite";

/// What an operation does, and the position in `nsInfo` of what it does it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressed {
    Insert(usize),
    Update { target: usize, upsert: bool },
    Delete(usize),
}

impl Addressed {
    /// Reads no more of an operation than what its rights depend on, as the command reads it.
    pub fn of(d: Doc<'_>) -> Result<Addressed> {
        let (within, first) = kind(d)?;
        let target = target_of(within, first)?;
        idl::unique(within, d)?;
        Ok(match first.name {
            "insert" => Addressed::Insert(target),
            "delete" => Addressed::Delete(target),
            _ => {
                let upsert = d.iter().find(|e| e.name == "upsert");
                let upsert = upsert.map(|e| idl::strict_flag(within, e)).transpose()?;
                let upsert = upsert.unwrap_or(false);
                Addressed::Update { target, upsert }
            }
        })
    }
}

/// What messages call an operation, and its first field.
pub fn kind<'a>(d: Doc<'a>) -> Result<(&'static str, Elem<'a>)> {
    let Some(first) = d.first() else {
        return Err(idl::missing(AT, "insert, update or delete"));
    };
    match first.name {
        "insert" => Ok(("bulkWrite.insert", first)),
        "update" => Ok(("bulkWrite.update", first)),
        "delete" => Ok(("bulkWrite.delete", first)),
        kind => Err(err!(
            IDLUnknownField,
            "Unrecognized BulkWrite operation '{kind}': it must be 'insert', 'update' or 'delete'"
        )
        .into()),
    }
}

pub fn target_of(within: &str, first: Elem<'_>) -> Result<usize> {
    let target = idl::int_from(within, first, 0)?;
    Ok(idl::required(within, first.name, target)? as usize)
}
