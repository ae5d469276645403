//! `usersInfo`.

use crate::clock::now_millis;
use crate::request::{CommandContext, Done};
use crate::security::roles;
use crate::security::roles::append_roles;
use crate::security::users::{self, User};
use auth::UserName;
use bson::{Doc, DocBuf, Writer, doc};
use errors::{Fallible, Result, bail};
use front::idl;
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;

const AT: &str = "usersInfo";

idl::arguments! {
    struct Arguments<'a> {
        "showPrivileges" => privileges: Option<bool> = idl::safe_bool,
        "showCredentials" => credentials: Option<bool> = idl::safe_bool,
        "showCustomData" => custom_data: Option<bool> = idl::safe_bool,
        "showAuthenticationRestrictions" => restrictions: Option<bool> = idl::safe_bool,
        "filter" => filter: Option<Doc<'a>> = idl::doc,
    }
}

/// Whose users are asked for.
enum Wanted {
    Named(Vec<UserName>),
    OfDatabase,
    All,
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let a = Arguments::parse(AT, cx.args.fields.iter().copied())?;
    let wanted = wanted(cx)?;
    let by_name = matches!(wanted, Wanted::Named(_)) && a.filter.is_none();
    if a.privileges.unwrap_or(false) && !by_name {
        bail!(
            IllegalOperation,
            "Privilege details require exact-match usersInfo queries."
        );
    }
    let filter = match a.filter {
        Some(d) => Filter::parse(d, &ParseEnv::new())?,
        None => Filter::all(),
    };
    let vars = Vars::new(now_millis());
    let mut shown = Vec::new();
    for user in &found(cx, wanted)? {
        let d = show(cx, user, &a)?;
        if filter.matches_with(d.as_doc(), &vars)? {
            shown.push(d);
        }
    }
    cx.w.open_array("users");
    for d in &shown {
        cx.w.push(d.as_doc().as_val());
    }
    cx.w.close();
    Ok(Done::Reply)
}

fn wanted(cx: &CommandContext<'_, '_>) -> Result<Wanted> {
    let first = cx.args.first;
    let named = |v| UserName::parse(v, cx.args.db);
    if let Some(list) = first.as_array() {
        let names: Fallible<Vec<UserName>> = list.values().map(named).collect();
        return Ok(Wanted::Named(names?));
    }
    if let Some(d) = first.as_doc() {
        return Ok(match d.get("forAllDBs") {
            Some(v) if v.truthy() => Wanted::All,
            _ => Wanted::Named(vec![named(first)?]),
        });
    }
    match first.as_str() {
        Some(_) => Ok(Wanted::Named(vec![named(first)?])),
        None if first.to_i64_truncated() == Some(1) => Ok(Wanted::OfDatabase),
        None => bail!(BadValue, "User name must be either a string or an object"),
    }
}

fn found(cx: &CommandContext<'_, '_>, wanted: Wanted) -> Result<Vec<User>> {
    let engine = &cx.app.engine;
    match wanted {
        Wanted::All => users::matching(engine, Doc::EMPTY),
        Wanted::OfDatabase => users::matching(engine, doc! { "db": cx.args.db }.as_doc()),
        Wanted::Named(names) => {
            let mut found = Vec::new();
            for name in names {
                found.extend(users::find(engine, &name)?);
            }
            Ok(found)
        }
    }
}

fn show(cx: &CommandContext<'_, '_>, user: &User, a: &Arguments<'_>) -> Result<DocBuf> {
    let mut w = Writer::new();
    w.str("_id", &user.name.id());
    if let Some(id) = user.field("userId") {
        w.val("userId", id);
    }
    w.str("user", &user.name.user).str("db", &user.name.db);
    let credentials = user.credentials();
    if a.credentials.unwrap_or(false) {
        w.doc("credentials", credentials);
    }
    if a.custom_data.unwrap_or(true)
        && let Some(d) = user.field("customData")
    {
        w.val("customData", d);
    }
    let given = user.roles();
    append_roles(&mut w, "roles", &given);
    let privileges = a.privileges.unwrap_or(false);
    if privileges || a.restrictions.unwrap_or(false) {
        match user.field("authenticationRestrictions") {
            Some(v) => w.val("authenticationRestrictions", v),
            None => w.open_array("authenticationRestrictions").close(),
        };
    }
    if privileges {
        let resolved = roles::resolve(&cx.app.engine, &given)?;
        append_roles(&mut w, "inheritedRoles", &resolved.roles);
        w.open_array("inheritedPrivileges");
        for p in resolved.privileges.list() {
            w.push(p.document().as_doc().as_val());
        }
        w.close();
        w.open_array("inheritedAuthenticationRestrictions").close();
    }
    w.open_array("mechanisms");
    for e in credentials.iter() {
        w.push_value(e.name);
    }
    w.close();
    Ok(w.finish())
}
