//! `dropRole` and `dropAllRolesFromDatabase`: users with a dropped role lose it.

use super::{document, existing, named};
use crate::request::{CommandContext, Done};
use crate::security::roles::append_roles;
use crate::security::{roles, users};
use crate::settings::documents;
use crate::users::with_fields;
use auth::RoleName;
use bson::{Doc, Writer, doc};
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    let name = named(cx)?;
    let app = cx.app;
    let _changing = app.security.changing.lock();
    existing(app, &name)?;
    take_away(cx, |r| *r == name)?;
    let filter = doc! { "role": &name.role, "db": &name.db };
    documents::remove(&mut cx.op, roles::NS, filter.as_doc())?;
    Ok(Done::Reply)
}

pub fn run_all(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    let app = cx.app;
    let _changing = app.security.changing.lock();
    let filter = doc! { "db": cx.args.db };
    let all = roles::matching(&app.engine, filter.as_doc())?;
    let gone: Vec<RoleName> = (all.iter())
        .filter_map(|d| Some(RoleName::new(d.get("role")?.as_str()?, cx.args.db)))
        .collect();
    take_away(cx, |r| gone.contains(r))?;
    let n = documents::remove(&mut cx.op, roles::NS, filter.as_doc())?;
    cx.w.int("n", n as i64);
    Ok(Done::Reply)
}

/// Takes roles from all users and roles that have them.
fn take_away(cx: &mut CommandContext<'_, '_>, is_gone: impl Fn(&RoleName) -> bool) -> Result<()> {
    let engine = cx.app.engine.clone();
    for user in users::matching(&engine, Doc::EMPTY)? {
        let mut has = user.roles();
        if has.iter().any(&is_gone) {
            has.retain(|r| !is_gone(r));
            let mut w = Writer::new();
            append_roles(&mut w, "roles", &has);
            let left = w.finish();
            let next = with_fields(user.document(), &[("roles", left.get("roles"))]);
            users::save(&mut cx.op, &engine, &user.name, next.as_doc())?;
        }
    }
    for d in roles::matching(&engine, Doc::EMPTY)? {
        let mut role = roles::parse(d.as_doc());
        let text = |field: &str| d.get(field).and_then(|v| v.as_str()).unwrap_or("");
        if role.roles.iter().any(&is_gone) {
            let name = RoleName::new(text("role"), text("db"));
            role.roles.retain(|r| !is_gone(r));
            let restrictions = d.get("authenticationRestrictions");
            let next = document(&name, &role.privileges, &role.roles, restrictions);
            roles::save(&mut cx.op, &name, next.as_doc())?;
        }
    }
    Ok(())
}
