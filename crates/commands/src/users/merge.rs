//! `_mergeAuthzCollections`: mongorestore puts users and roles into collections of its own, and has
//! the server take them over from there.

use super::with_fields;
use crate::request::{CommandContext, Done};
use crate::security::{roles, users};
use crate::settings::documents;
use bson::{DocBuf, doc};
use errors::{Result, bail};
use front::idl;
use std::collections::HashSet;

idl::arguments! {
    struct Arguments<'a> {
        "tempUsersCollection" => users: Option<&'a str> = idl::string,
        "tempRolesCollection" => roles: Option<&'a str> = idl::string,
        "db" => db: Option<&'a str> = idl::string,
        "drop" => drop: Option<bool> = idl::safe_bool,
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let a = Arguments::parse(cx.command.name, cx.args.fields.iter().copied())?;
    let (from_users, from_roles) = (a.users.unwrap_or(""), a.roles.unwrap_or(""));
    if from_users.is_empty() && from_roles.is_empty() {
        bail!(
            BadValue,
            "Must provide at least one of \"tempUsersCollection\" and \"tempRolescollection\""
        );
    }
    let filter = match a.db.unwrap_or("") {
        "" => DocBuf::new(),
        db => doc! { "db": db },
    };
    let drop = a.drop.unwrap_or(false);
    let app = cx.app;
    let _changing = app.security.changing.lock();
    for (from, to) in [(from_users, users::NS), (from_roles, roles::NS)] {
        if !from.is_empty() {
            take_over(cx, from, to, &filter, drop)?;
        }
    }
    Ok(Done::Reply)
}

/// Puts what `from` holds into `to`; with `drop` what it does not hold goes.
fn take_over(
    cx: &mut CommandContext<'_, '_>,
    from: &str,
    to: &str,
    filter: &DocBuf,
    drop: bool,
) -> Result<()> {
    let mut given: Vec<DocBuf> = Vec::new();
    documents::each(&cx.app.engine, from, filter.as_doc(), |d| {
        given.push(d.to_buf());
        Ok(true)
    })?;
    let mut ids = HashSet::new();
    for d in &given {
        let Some(id) = d.get("_id").and_then(|v| v.as_str()) else {
            bail!(BadValue, "A document of {from} has no _id that is a string");
        };
        let fields = with_fields(d.as_doc(), &[]);
        documents::put(&mut cx.op, to, id, fields.as_doc())?;
        ids.insert(id.to_string());
    }
    let mut gone = Vec::new();
    documents::each(&cx.app.engine, to, filter.as_doc(), |d| {
        let id = d.get("_id").and_then(|v| v.as_str()).unwrap_or("");
        if drop && !ids.contains(id) {
            gone.push(doc! { "_id": id });
        }
        Ok(drop)
    })?;
    for filter in gone {
        documents::remove(&mut cx.op, to, filter.as_doc())?;
    }
    Ok(())
}
