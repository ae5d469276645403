//! The audit log: logins and failed ones, refusals, and changes of users, roles and collections, as
//! lines of JSON in MongoDB's form.
//!
//! ```text
//! {atype, ts, uuid, local: {ip, port}, remote: {ip, port}, users: [{user, db}], roles: [{role, db}], param, result}
//! ```
//! Invariants: a line holds no password. Without an audit log nothing of this is made.

use super::{roles, users};
use crate::clock::now_millis;
use crate::connection::Connection;
use bson::{DocBuf, Writer, doc};
use errors::{Code, Error, Result, err};
use parking_lot::Mutex;
use query::expr::Vars;
use query::filter::Filter;
use service::config::{AuditOptions, AuditTo};
use service::{Address, Client, Request};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub struct Audit {
    to: Mutex<Box<dyn std::io::Write + Send>>,
    filter: Filter,
    /// A line could not be written, which was told.
    failing: AtomicBool,
}

/// A command that has ended, as far as the audit log is concerned.
pub struct EndedCommand<'a> {
    pub client: &'a Client<Connection>,
    pub command: &'a str,
    pub db: &'a str,
    pub request: &'a Request<'a>,
    pub failure: Option<&'a Error>,
    /// Collections that it made because something was written to them, or put in the place of others.
    pub made: &'a [String],
}

impl Audit {
    pub fn open(options: &AuditOptions) -> Result<Audit> {
        let filter = match &options.filter {
            None => Filter::all(),
            Some(text) => {
                let d = bson::json::parse(text)
                    .map_err(|e| err!(BadValue, "the audit filter is no document: {e}"))?;
                Filter::parse(d.as_doc(), &Default::default())?
            }
        };
        let to: Box<dyn std::io::Write + Send> = match &options.to {
            AuditTo::Console => Box::new(std::io::stdout()),
            AuditTo::File(path) => {
                let file = OpenOptions::new()
                    .append(true)
                    .create(true)
                    .mode(0o600)
                    .open(path);
                let file = file
                    .map_err(|e| err!(FileOpenFailed, "the audit log {}: {e}", path.display()))?;
                Box::new(file)
            }
        };
        Ok(Audit {
            to: Mutex::new(to),
            filter,
            failing: AtomicBool::new(false),
        })
    }

    /// An event of a client: writes its line where the filter lets it through.
    pub fn tell(&self, client: &Client<Connection>, atype: &str, param: &DocBuf, result: i32) {
        let d = line(client, atype, param, result);
        let vars = Vars::new(now_millis());
        if !self.filter.matches_with(d.as_doc(), &vars).unwrap_or(true) {
            return;
        }
        let mut text = bson::json::val_to_string(d.as_doc().as_val());
        text.push('\n');
        let mut to = self.to.lock();
        let written = to.write_all(text.as_bytes()).and_then(|()| to.flush());
        let failing = written.is_err();
        if failing && !self.failing.swap(failing, Relaxed) {
            tracing::error!(target: "ACCESS", error = ?written, "Cannot write the audit log");
        }
    }

    /// What a command has done, or was not allowed to.
    pub fn observe(&self, ended: &EndedCommand<'_>) {
        let code = ended.failure.map_or(0, |e| e.code.0);
        if code == Code::Unauthorized.0 {
            let shown = front::redact::without_secrets(ended.request.body);
            let args = shown.as_ref().map_or(ended.request.body, DocBuf::as_doc);
            let mut w = Writer::new();
            w.str("command", ended.command)
                .str("ns", &namespace(ended))
                .doc("args", args);
            return self.tell(ended.client, "authCheck", &w.finish(), code);
        }
        // Those that keep users and settings are the server's own doing.
        let by_client = |ns: &&String| !ns.starts_with("admin.system.");
        for ns in ended.made.iter().filter(by_client) {
            let param = doc! { "ns": ns };
            self.tell(ended.client, "createCollection", &param, 0);
        }
        if let Some((atype, param)) = change(ended) {
            self.tell(ended.client, atype, &param, code);
        }
        for ns in written_past_commands(ended) {
            let param = doc! { "document": doc!{}, "ns": ns, "operation": ended.command };
            self.tell(ended.client, "directAuthMutation", &param, code);
        }
    }
}

/// The collections of users and roles that a command writes to which is no command of users and roles.
/// What it wrote is not shown: it holds secrets.
fn written_past_commands(ended: &EndedCommand<'_>) -> Vec<&'static str> {
    let of_users = |ns: &str| {
        [users::NS, roles::NS]
            .into_iter()
            .find(|known| *known == ns)
    };
    match ended.command {
        "insert" | "update" | "delete" | "findAndModify" => {
            of_users(&namespace(ended)).into_iter().collect()
        }
        "bulkWrite" => {
            let inline = ended.request.body.get("nsInfo").and_then(|v| v.as_array());
            let beside = ended.request.sequence("nsInfo").into_iter().flatten();
            (inline.into_iter().flat_map(|list| list.values()))
                .filter_map(|v| v.as_doc())
                .chain(beside)
                .filter_map(|d| of_users(d.get("ns")?.as_str()?))
                .collect()
        }
        _ => Vec::new(),
    }
}

fn namespace(ended: &EndedCommand<'_>) -> String {
    match ended.request.body.first().and_then(|e| e.val.as_str()) {
        Some(collection) => format!("{}.{collection}", ended.db),
        None => ended.db.to_string(),
    }
}

fn line(client: &Client<Connection>, atype: &str, param: &DocBuf, result: i32) -> DocBuf {
    let user = client.state.login.user();
    let mut w = Writer::new();
    w.str("atype", atype)
        .date("ts", now_millis())
        .binary("uuid", 4, &client.state.uuid);
    place(&mut w, "local", &client.local);
    place(&mut w, "remote", &client.peer);
    w.open_array("users");
    if let Some(user) = &user {
        w.open_doc("")
            .str("user", &user.name.user)
            .str("db", &user.name.db)
            .close();
    }
    w.close();
    let roles = user.iter().flat_map(|u| &u.all_roles);
    roles::append_roles(&mut w, "roles", roles);
    w.doc("param", param.as_doc()).i32("result", result);
    w.finish()
}

fn place(w: &mut Writer, field: &str, address: &Address) {
    w.open_doc(field);
    match address {
        Address::Tcp(a) => {
            w.str("ip", &a.ip().to_canonical().to_string())
                .i32("port", i32::from(a.port()));
        }
        Address::Unix(path) => {
            w.str("unix", path);
        }
    }
    w.close();
}

/// The event of a command, and its parameters; `None` for commands that are not audited.
fn change(ended: &EndedCommand<'_>) -> Option<(&'static str, DocBuf)> {
    let (body, db) = (ended.request.body, ended.db);
    let text = |field: &str| body.get(field).and_then(|v| v.as_str()).unwrap_or("");
    let first = body.first().and_then(|e| e.val.as_str()).unwrap_or("");
    let of_name = |what: &str| {
        // The fields of a change of users or roles, without generic and secret ones.
        let mut w = Writer::new();
        w.str(
            what,
            body.first().and_then(|e| e.val.as_str()).unwrap_or(""),
        )
        .str("db", db);
        let told = [
            "roles",
            "privileges",
            "customData",
            "authenticationRestrictions",
        ];
        for e in body.iter().filter(|e| told.contains(&e.name)) {
            w.val(e.name, e.val);
        }
        w.finish()
    };
    let ns = namespace(ended);
    Some(match ended.command {
        "createUser" => ("createUser", of_name("user")),
        "updateUser" => ("updateUser", of_name("user")),
        "dropUser" => ("dropUser", of_name("user")),
        "dropAllUsersFromDatabase" => ("dropAllUsersFromDatabase", doc! { "db": db }),
        "grantRolesToUser" => ("grantRolesToUser", of_name("user")),
        "revokeRolesFromUser" => ("revokeRolesFromUser", of_name("user")),
        "createRole" => ("createRole", of_name("role")),
        "updateRole" => ("updateRole", of_name("role")),
        "dropRole" => ("dropRole", of_name("role")),
        "dropAllRolesFromDatabase" => ("dropAllRolesFromDatabase", doc! { "db": db }),
        "grantRolesToRole" => ("grantRolesToRole", of_name("role")),
        "revokeRolesFromRole" => ("revokeRolesFromRole", of_name("role")),
        "grantPrivilegesToRole" => ("grantPrivilegesToRole", of_name("role")),
        "revokePrivilegesFromRole" => ("revokePrivilegesFromRole", of_name("role")),
        "create" => ("createCollection", doc! { "ns": &ns }),
        "drop" => ("dropCollection", doc! { "ns": &ns }),
        "dropDatabase" => ("dropDatabase", doc! { "ns": db }),
        "renameCollection" => {
            let old = body.first().and_then(|e| e.val.as_str()).unwrap_or("");
            ("renameCollection", doc! { "old": old, "new": text("to") })
        }
        "createIndexes" => {
            let mut w = Writer::new();
            w.str("ns", &ns);
            if let Some(v) = body.get("indexes") {
                w.val("indexes", v);
            }
            ("createIndex", w.finish())
        }
        "dropIndexes" => {
            let mut w = Writer::new();
            w.str("ns", &ns);
            if let Some(v) = body.get("index") {
                w.val("indexName", v);
            }
            ("dropIndex", w.finish())
        }
        // A refused message is no event.
        "logApplicationMessage" if ended.failure.is_none() => (
            "applicationMessage",
            doc! { "msg": text("logApplicationMessage") },
        ),
        "enableSharding" => ("enableSharding", doc! { "ns": first }),
        "shardCollection" => {
            let mut w = Writer::new();
            w.str("ns", first);
            if let Some(v) = body.get("key") {
                w.val("key", v);
            }
            let unique = body.get("unique").is_some_and(|v| v.truthy());
            w.doc("options", doc! { "unique": unique }.as_doc());
            ("shardCollection", w.finish())
        }
        "addShard" => {
            let connection = doc! { "shard": text("name"), "connectionString": first };
            ("addShard", connection)
        }
        "removeShard" => ("removeShard", doc! { "shard": first }),
        "shutdown" => ("shutdown", doc! {}),
        "rotateCertificates" => ("rotateCertificates", doc! {}),
        _ => return None,
    })
}
