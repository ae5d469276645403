//! `dropUser` and `dropAllUsersFromDatabase`.

use super::existing;
use crate::request::{CommandContext, Done};
use crate::security::users;
use crate::settings::documents;
use auth::UserName;
use bson::doc;
use errors::Result;
use front::idl;

const AT: &str = "dropUser";

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    let Some(user) = cx.args.first.as_str() else {
        return Err(idl::mismatch(AT, AT, cx.args.first, &["string"]));
    };
    let app = cx.app;
    let _changing = app.security.changing.lock();
    existing(app, &UserName::new(user, cx.args.db))?;
    let filter = doc! { "user": user, "db": cx.args.db };
    documents::remove(&mut cx.op, users::NS, filter.as_doc())?;
    Ok(Done::Reply)
}

pub fn run_all(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    let app = cx.app;
    let _changing = app.security.changing.lock();
    let filter = doc! { "db": cx.args.db };
    let n = documents::remove(&mut cx.op, users::NS, filter.as_doc())?;
    cx.w.int("n", n as i64);
    Ok(Done::Reply)
}
