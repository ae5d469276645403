//! `grantPrivilegesToRole` and `revokePrivilegesFromRole`.

use super::{alter, named, privileges};
use crate::request::{CommandContext, Done};
use auth::privilege::Privilege;
use bson::Doc;
use errors::Result;
use front::idl;

idl::arguments! {
    struct Arguments<'a> {
        "privileges" => privileges: Option<Doc<'a>> = idl::array,
    }
}

pub fn grant(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    change(cx, |has, given| {
        for p in given {
            match has.iter_mut().find(|h| h.resource == p.resource) {
                Some(h) => h.actions = h.actions.and(p.actions),
                None => has.push(p.clone()),
            }
        }
    })
}

pub fn revoke(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    change(cx, |has, taken| {
        for p in taken {
            for h in has.iter_mut().filter(|h| h.resource == p.resource) {
                h.actions = h.actions.without(p.actions);
            }
        }
        has.retain(|h| !h.actions.is_empty());
    })
}

fn change(
    cx: &mut CommandContext<'_, '_>,
    change: impl FnOnce(&mut Vec<Privilege>, &[Privilege]),
) -> Result<Done> {
    let name = named(cx)?;
    let at = cx.command.name;
    let a = Arguments::parse(at, cx.args.fields.iter().copied())?;
    let given = privileges(idl::required(at, "privileges", a.privileges)?)?;
    super::check_reach(&name, &given, &[])?;
    let change = |role: &mut auth::role::Role| {
        change(&mut role.privileges, &given);
        Ok(())
    };
    alter(cx, &name, change, None)?;
    Ok(Done::Reply)
}
