//! `updateUser`.

use super::create_user::Arguments;
use super::{check_restrictions, check_roles, existing, with_fields};
use crate::request::{CommandContext, Done};
use crate::security::roles::append_roles;
use crate::security::users;
use auth::scram::Hash;
use auth::{RoleName, UserName};
use bson::{Doc, DocBuf, Writer};
use errors::{Result, bail};
use front::idl;

const AT: &str = "updateUser";

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let Some(user) = cx.args.first.as_str() else {
        return Err(idl::mismatch(AT, AT, cx.args.first, &["string"]));
    };
    let a = Arguments::parse(AT, cx.args.fields.iter().copied())?;
    let name = UserName::new(user, cx.args.db);
    check_arguments(&name, &a)?;
    let new_credentials = match a.pwd {
        Some(pwd) => Some(a.password().credentials(cx.app, user, pwd)?),
        None => None,
    };
    let app = cx.app;
    let _changing = app.security.changing.lock();
    let stored = existing(app, &name)?;
    let credentials = match (new_credentials, a.mechanisms) {
        (Some(credentials), _) => Some(credentials),
        (None, Some(_)) => Some(fewer(stored.credentials(), &a.password().hashes()?)?),
        (None, None) => None,
    };
    let roles = match a.roles {
        Some(list) => {
            let names = RoleName::parse_list(list, &name.db)?;
            check_roles(app, &names)?;
            let mut w = Writer::new();
            append_roles(&mut w, "roles", &names);
            Some(w.finish())
        }
        None => None,
    };
    let mut changed = Vec::new();
    if let Some(d) = &credentials {
        changed.push(("credentials", Some(d.as_doc().as_val())));
    }
    if let Some(d) = a.custom_data {
        changed.push(("customData", Some(d.as_val())));
    }
    if let Some(d) = &roles {
        changed.push(("roles", d.get("roles")));
    }
    if let Some(v) = a.restrictions {
        let some = v.as_array().is_some_and(|list| !list.is_empty());
        changed.push(("authenticationRestrictions", some.then_some(v)));
    }
    let next = with_fields(stored.document(), &changed);
    users::save(&mut cx.op, &app.engine, &name, next.as_doc())?;
    Ok(Done::Reply)
}

fn check_arguments(name: &UserName, a: &Arguments<'_>) -> Result<()> {
    let something = a.pwd.is_some()
        || a.custom_data.is_some()
        || a.roles.is_some()
        || a.restrictions.is_some()
        || a.mechanisms.is_some();
    if !something {
        bail!(
            BadValue,
            "Must specify at least one field to update in updateUser"
        );
    }
    if a.pwd.is_some() && name.db == "$external" {
        bail!(
            BadValue,
            "Cannot set the password for users defined on the '$external' database"
        );
    }
    check_restrictions(a.restrictions)
}

/// Those of the credentials that belong to `hashes`, which must all be there.
fn fewer(credentials: Doc<'_>, hashes: &[Hash]) -> Result<DocBuf> {
    let mut w = Writer::new();
    for hash in hashes {
        match credentials.get(hash.mechanism()) {
            Some(v) => w.val(hash.mechanism(), v),
            None => bail!(
                BadValue,
                "mechanisms field must be a subset of previously set mechanisms"
            ),
        };
    }
    Ok(w.finish())
}
