//! `createUser`.

use super::password::Password;
use super::{check_restrictions, check_roles};
use crate::request::{CommandContext, Done};
use crate::security::roles::append_roles;
use crate::security::users;
use auth::{RoleName, UserName};
use bson::{Doc, DocBuf, Val, Writer, doc};
use catalog::new_uuid;
use errors::{Result, bail};
use front::idl;

const AT: &str = "createUser";

idl::arguments! {
    pub struct Arguments<'a> {
        "pwd" => pwd: Option<&'a str> = idl::string,
        "customData" => custom_data: Option<Doc<'a>> = idl::doc,
        "roles" => roles: Option<Doc<'a>> = idl::array,
        "digestPassword" => digest: Option<bool> = idl::boolean,
        "authenticationRestrictions" => restrictions: Option<Val<'a>> = idl::value,
        "mechanisms" => mechanisms: Option<Doc<'a>> = idl::array,
    }
}

impl<'a> Arguments<'a> {
    pub fn password(&self) -> Password<'a> {
        Password {
            is_digest: self.digest == Some(false),
            mechanisms: self.mechanisms,
        }
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let Some(user) = cx.args.first.as_str() else {
        return Err(idl::mismatch(AT, AT, cx.args.first, &["string"]));
    };
    let a = Arguments::parse(AT, cx.args.fields.iter().copied())?;
    let name = UserName::new(user, cx.args.db);
    let given = idl::required(AT, "roles", a.roles)?;
    check_name(&name)?;
    let credentials = credentials(cx, &name, &a)?;
    check_restrictions(a.restrictions)?;
    let roles = RoleName::parse_list(given, &name.db)?;
    let app = cx.app;
    let _changing = app.security.changing.lock();
    check_roles(app, &roles)?;
    if users::find(&app.engine, &name)?.is_some() {
        bail!(51003, "User \"{name}\" already exists");
    }
    let mut w = Writer::new();
    w.binary("userId", 4, &new_uuid())
        .str("user", user)
        .str("db", &name.db)
        .doc("credentials", credentials.as_doc());
    if let Some(d) = a.custom_data {
        w.doc("customData", d);
    }
    append_roles(&mut w, "roles", &roles);
    if let Some(v) = a.restrictions {
        w.val("authenticationRestrictions", v);
    }
    users::save(&mut cx.op, &app.engine, &name, w.finish().as_doc())?;
    Ok(Done::Reply)
}

fn credentials(cx: &CommandContext<'_, '_>, name: &UserName, a: &Arguments<'_>) -> Result<DocBuf> {
    match (a.pwd, name.db == "$external") {
        (None, false) => bail!(
            BadValue,
            "Must provide a 'pwd' field for all user documents, except those with '$external' as the user's source db"
        ),
        (Some(_), true) => bail!(
            BadValue,
            "Cannot set the password for users defined on the '$external' database"
        ),
        (Some(pwd), false) => a.password().credentials(cx.app, &name.user, pwd),
        (None, true) => Ok(doc! { "external": true }),
    }
}

fn check_name(name: &UserName) -> Result<()> {
    if name.user.is_empty() {
        bail!(BadValue, "User document needs 'user' field to be non-empty");
    }
    if name.user.contains('\0') {
        bail!(BadValue, "Username cannot contain NULL characters");
    }
    if name.db == "local" {
        bail!(BadValue, "Cannot create users in the local database");
    }
    Ok(())
}
