//! What each command needs, beyond what one action on one resource says: by its arguments.
//!
//! Whoever makes users and roles must himself be allowed to give away what they get.

use super::authorize::Check;
use crate::request::args::Args;
use crate::request::table;
use auth::privilege::Privilege;
use auth::{Action, RoleName, Target, UserName};
use bson::{Doc, Val};
use catalog::{collection_of, db_of};
use errors::Result;

/// What a command needs of who runs it.
pub enum RequiredAccess {
    /// Anybody may, before a login too.
    Nothing,
    Login,
    Cluster(&'static [Action]),
    /// On the database that it is sent to.
    Database(&'static [Action]),
    /// On the collection that its first value names.
    Collection(&'static [Action]),
    /// On the collection that its first value names with its database.
    Namespace(&'static [Action]),
    /// On the database that its first value names.
    NamedDatabase(&'static [Action]),
    /// On a collection that is always the same: database and name.
    Fixed(&'static str, &'static str, &'static [Action]),
    /// Its arguments decide.
    Own(fn(&Check<'_, '_>) -> Result<bool>),
}

use Action::*;

fn of_ns(ns: &str) -> Target<'_> {
    Target::Collection(db_of(ns), collection_of(ns))
}

/// With documents that a validator would refuse.
fn bypasses(check: &Check<'_, '_>, target: Target<'_>) -> bool {
    !check.flag("bypassDocumentValidation") || check.may(BypassDocumentValidation, target)
}

pub fn insert(check: &Check<'_, '_>) -> Result<bool> {
    let target = check.target();
    Ok(check.may(Insert, target) && bypasses(check, target))
}

pub fn update(check: &Check<'_, '_>) -> Result<bool> {
    let target = check.target();
    let upserts = || {
        let updates = check.documents("updates");
        (updates.iter()).any(|u| u.get("upsert").is_some_and(|v| v.truthy()))
    };
    Ok(check.may(Update, target)
        && bypasses(check, target)
        && (check.may(Insert, target) || !upserts()))
}

pub fn find_and_modify(check: &Check<'_, '_>) -> Result<bool> {
    let target = check.target();
    let write = if check.flag("remove") { Remove } else { Update };
    let upserts = check.flag("upsert");
    Ok(check.may_all(&[Find, write], target)
        && (!upserts || check.may(Insert, target))
        && bypasses(check, target))
}

pub fn bulk_write(check: &Check<'_, '_>) -> Result<bool> {
    let spaces = check.documents("nsInfo");
    let ns = |op: Doc<'_>| {
        let at = op.first()?.val.to_i64_truncated()?;
        spaces.get(usize::try_from(at).ok()?)?.get("ns")?.as_str()
    };
    for op in check.documents("ops") {
        // What is malformed is told by the command itself.
        let (Some(kind), Some(ns)) = (op.first(), ns(op)) else {
            continue;
        };
        let target = of_ns(ns);
        let upserts = op.get("upsert").is_some_and(|v| v.truthy());
        let allowed = match kind.name {
            "insert" => check.may(Insert, target),
            "update" => check.may(Update, target) && (!upserts || check.may(Insert, target)),
            "delete" => check.may(Remove, target),
            _ => true,
        };
        if !allowed || !bypasses(check, target) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub fn aggregate(check: &Check<'_, '_>) -> Result<bool> {
    let pipeline = check.args.field("pipeline").and_then(|v| v.as_array());
    let pipeline = pipeline.unwrap_or(Doc::EMPTY);
    let collection = check.args.first.as_str();
    Ok(pipeline_of(check, check.args.db, collection, pipeline))
}

/// Whether a pipeline may read what it begins with, and do what its stages do. `collection` is
/// `None` where it reads none.
fn pipeline_of(check: &Check<'_, '_>, db: &str, collection: Option<&str>, stages: Doc<'_>) -> bool {
    let target = match collection {
        Some(c) => Target::Collection(db, c),
        None => Target::Database(db),
    };
    let first = stages.values().next().and_then(|v| v.as_doc()?.first());
    let begins = match first.map(|e| (e.name, e.val)) {
        Some(("$collStats", _)) => check.may(CollStats, target),
        Some(("$indexStats", _)) => check.may(IndexStats, target),
        Some(("$planCacheStats", _)) => check.may(PlanCacheRead, target),
        Some(("$listSearchIndexes", _)) => check.may(ListSearchIndexes, target),
        Some(("$currentOp", spec)) => {
            // Everybody may see his own.
            let all = spec.as_doc().and_then(|d| d.get("allUsers"));
            !all.is_some_and(|v| v.truthy()) || check.may(Inprog, Target::Cluster)
        }
        Some(("$listSessions" | "$listLocalSessions", spec)) => {
            let d = spec.as_doc().unwrap_or(Doc::EMPTY);
            let others = d.get("allUsers").is_some_and(|v| v.truthy()) || d.get("users").is_some();
            !others || check.may(ListSessions, Target::Cluster)
        }
        Some(("$shardedDataDistribution", _)) => {
            check.may(ShardedDataDistribution, Target::Cluster)
        }
        Some(("$querySettings", _)) => check.may(QuerySettings, Target::Cluster),
        Some(("$queryStats", _)) => check.may(QueryStatsRead, Target::Cluster),
        Some(("$documents", _)) => true,
        Some(("$changeStream", spec)) => {
            let d = spec.as_doc().unwrap_or(Doc::EMPTY);
            let whole = d.get("allChangesForCluster").is_some_and(|v| v.truthy());
            let target = if whole { Target::AnyNormal } else { target };
            check.may_all(&[Find, ChangeStream], target)
        }
        _ => check.may(Find, target),
    };
    begins
        && stages
            .values()
            .all(|v| v.as_doc().is_none_or(|d| stage(check, db, d)))
}

/// What a stage reads and writes besides its input.
fn stage(check: &Check<'_, '_>, db: &str, stage: Doc<'_>) -> bool {
    let Some(e) = stage.first() else {
        return true;
    };
    match e.name {
        "$lookup" | "$graphLookup" | "$unionWith" => joined(check, db, e.val),
        "$facet" => (e.val.as_doc().iter())
            .flat_map(|d| d.iter())
            .filter_map(|e| e.val.as_array())
            .all(|stages| stages_of(check, db, stages)),
        "$out" => {
            let (db, c) = place(e.val, db, "coll");
            let target = Target::Collection(db, c);
            check.may_all(&[Insert, Remove], target) && bypasses(check, target)
        }
        "$merge" => merge(check, db, e.val),
        _ => true,
    }
}

fn stages_of(check: &Check<'_, '_>, db: &str, stages: Doc<'_>) -> bool {
    stages
        .values()
        .all(|v| v.as_doc().is_none_or(|d| stage(check, db, d)))
}

/// `"collection"`, or a document with `db` and `field`.
fn place<'a>(v: Val<'a>, db: &'a str, field: &str) -> (&'a str, &'a str) {
    if let Some(name) = v.as_str() {
        return (db, name);
    }
    let d = v.as_doc().unwrap_or(Doc::EMPTY);
    let text = |name: &str| d.get(name).and_then(|v| v.as_str());
    (text("db").unwrap_or(db), text(field).unwrap_or(""))
}

/// A stage that reads another collection, maybe through stages of its own.
fn joined(check: &Check<'_, '_>, db: &str, v: Val<'_>) -> bool {
    let d = v.as_doc().unwrap_or(Doc::EMPTY);
    let stages = d.get("pipeline").and_then(|v| v.as_array());
    let stages = stages.unwrap_or(Doc::EMPTY);
    let from = match (v.as_str(), d.get("from"), d.get("coll")) {
        (Some(name), ..) => Some((db, name)),
        (_, Some(from), _) | (_, None, Some(from)) => Some(place(from, db, "coll")),
        _ => None,
    };
    match from {
        Some((db, name)) => pipeline_of(check, db, Some(name), stages),
        None => stages_of(check, db, stages),
    }
}

fn merge(check: &Check<'_, '_>, db: &str, v: Val<'_>) -> bool {
    let d = v.as_doc().unwrap_or(Doc::EMPTY);
    let into = d.get("into").unwrap_or(v);
    let (db, c) = place(into, db, "coll");
    let target = Target::Collection(db, c);
    let mode = |field: &str| d.get(field).and_then(|v| v.as_str());
    let updates = !matches!(mode("whenMatched"), Some("fail" | "keepExisting"));
    let inserts = !matches!(mode("whenNotMatched"), Some("fail" | "discard"));
    (!updates || check.may(Update, target))
        && (!inserts || check.may(Insert, target))
        && bypasses(check, target)
}

pub fn map_reduce(check: &Check<'_, '_>) -> Result<bool> {
    let out = check.args.field("out");
    let to = |v: Val<'_>, actions: &[Action]| {
        let (db, c) = place(v, check.args.db, "");
        check.may_all(actions, Target::Collection(db, c))
    };
    let writes = match out {
        Some(v) if v.as_str().is_some() => to(v, &[Insert, Remove]),
        Some(v) => match v.as_doc().and_then(|d| d.first()) {
            Some(e) if e.name == "replace" => to(e.val, &[Insert, Remove]),
            Some(e) if matches!(e.name, "merge" | "reduce") => to(e.val, &[Insert, Update]),
            _ => true,
        },
        None => true,
    };
    Ok(check.may(Find, check.target()) && writes)
}

/// What the explained command needs.
pub fn explain(check: &Check<'_, '_>) -> Result<bool> {
    let Some(inner) = check.args.first.as_doc() else {
        return Ok(true);
    };
    let command = inner.first().and_then(|e| table::lookup(e.name));
    let Some(command) = command.filter(|c| c.name != "explain") else {
        return Ok(true);
    };
    let args = Args::parse(command.name, inner, Some(check.args.db))?;
    Check {
        user: check.user,
        args: &args,
        request: None,
    }
    .meets(&command.needs)
}

/// All collections, or the names of those that the user may see anything of.
pub fn list_collections(check: &Check<'_, '_>) -> Result<bool> {
    let own = check.flag("authorizedCollections") && check.flag("nameOnly");
    Ok(own || check.may(ListCollections, Target::Database(check.args.db)))
}

/// All databases, or those of them that the user may see.
pub fn list_databases(check: &Check<'_, '_>) -> Result<bool> {
    let all = check.args.field("authorizedDatabases");
    let wants_all = all.is_some_and(|v| !v.truthy());
    Ok(!wants_all || check.may(ListDatabases, Target::Cluster))
}

pub fn create(check: &Check<'_, '_>) -> Result<bool> {
    let target = check.target();
    if !check.may(CreateCollection, target) && !check.may(Insert, target) {
        return Ok(false);
    }
    let Some(on) = check.args.field("viewOn").and_then(|v| v.as_str()) else {
        return Ok(!check.flag("capped") || check.may(ConvertToCapped, target));
    };
    let pipeline = check.args.field("pipeline").and_then(|v| v.as_array());
    let pipeline = pipeline.unwrap_or(Doc::EMPTY);
    // A view shows whoever may read it what it reads.
    Ok(
        check.may(CreateCollection, target)
            && pipeline_of(check, check.args.db, Some(on), pipeline),
    )
}

pub fn coll_mod(check: &Check<'_, '_>) -> Result<bool> {
    let target = check.target();
    let pipeline = check.args.field("pipeline").and_then(|v| v.as_array());
    let reads = match check.args.field("viewOn").and_then(|v| v.as_str()) {
        Some(on) => pipeline_of(
            check,
            check.args.db,
            Some(on),
            pipeline.unwrap_or(Doc::EMPTY),
        ),
        None => true,
    };
    Ok(check.may(CollMod, target) && reads)
}

pub fn rename_collection(check: &Check<'_, '_>) -> Result<bool> {
    let to = check.args.field("to").and_then(|v| v.as_str());
    let (Some(from), Some(to)) = (check.args.first.as_str(), to) else {
        return Ok(true);
    };
    let (source, target) = (of_ns(from), of_ns(to));
    let drops = check.flag("dropTarget");
    // Nobody gets to read a collection by giving it another name.
    let hides = check.may(Find, source) || !check.may(Find, target);
    if db_of(from) == db_of(to)
        && check.may(RenameCollectionSameDb, source)
        && check.may(RenameCollectionSameDb, target)
        && hides
        && (!drops || check.may(DropCollection, target))
    {
        return Ok(true);
    }
    Ok(check.may_all(&[Find, DropCollection], source)
        && check.may_all(&[Insert, CreateIndex], target)
        && (!drops || check.may(DropCollection, target)))
}

pub fn clone_collection_as_capped(check: &Check<'_, '_>) -> Result<bool> {
    let to = check.args.field("toCollection").and_then(|v| v.as_str());
    let target = Target::Collection(check.args.db, to.unwrap_or(""));
    Ok(check.may(Find, check.target())
        && check.may_all(&[Insert, CreateIndex, ConvertToCapped], target))
}

/// The first value is `db.collection`.
pub fn data_size(check: &Check<'_, '_>) -> Result<bool> {
    let ns = check.args.first.as_str().unwrap_or("");
    Ok(check.may(Find, of_ns(ns)))
}

pub fn file_md5(check: &Check<'_, '_>) -> Result<bool> {
    let root = check.args.field("root").and_then(|v| v.as_str());
    let chunks = format!("{}.chunks", root.unwrap_or("fs"));
    Ok(check.may(Find, Target::Collection(check.args.db, &chunks)))
}

pub fn current_op(check: &Check<'_, '_>) -> Result<bool> {
    Ok(check.flag("$ownOps") || check.may(Inprog, Target::Cluster))
}

pub fn profile(check: &Check<'_, '_>) -> Result<bool> {
    let asks = check.args.first.to_i64_truncated() == Some(-1);
    let db = check.args.db;
    let own = Target::Collection(db, "system.profile");
    Ok(check.may(EnableProfiler, Target::Database(db)) || asks && check.may(Find, own))
}

pub fn profile_everywhere(check: &Check<'_, '_>) -> Result<bool> {
    Ok(check.may(EnableProfiler, Target::AnyNormal))
}

/// A copy of everything, which holds up the server's disk.
pub fn backup(check: &Check<'_, '_>) -> Result<bool> {
    let reads = check.may(Find, Target::AnyNormal)
        && check.may(Find, Target::Collection("admin", "system.users"));
    Ok(reads && check.may(Fsync, Target::Cluster))
}

/// Entries can do anything.
pub fn apply_ops(check: &Check<'_, '_>) -> Result<bool> {
    Ok(check.may(AnyAction, Target::Any))
}

// Users and roles.

/// Whether roles may be given away, each by who may in its database.
fn grants(check: &Check<'_, '_>, action: Action, field: &str) -> Result<bool> {
    let Some(list) = check.args.field(field).and_then(|v| v.as_array()) else {
        return Ok(true);
    };
    let names = RoleName::parse_list(list, check.args.db)?;
    Ok((names.iter()).all(|r| check.may(action, Target::Database(&r.db))))
}

/// The databases of privileges in `field`.
fn grants_privileges(check: &Check<'_, '_>, action: Action) -> Result<bool> {
    for d in check.documents("privileges") {
        let (privilege, _) = Privilege::parse(d)?;
        // What belongs to no database is given away by admin.
        let db = privilege.resource.db().unwrap_or("admin");
        if !check.may(action, Target::Database(db)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn restricts(check: &Check<'_, '_>) -> bool {
    check.args.field("authenticationRestrictions").is_none()
        || check.may(
            SetAuthenticationRestriction,
            Target::Database(check.args.db),
        )
}

pub fn create_user(check: &Check<'_, '_>) -> Result<bool> {
    Ok(check.may(CreateUser, Target::Database(check.args.db))
        && grants(check, GrantRole, "roles")?
        && restricts(check))
}

pub fn update_user(check: &Check<'_, '_>) -> Result<bool> {
    let db = Target::Database(check.args.db);
    let own = check.args.first.as_str() == Some(&check.user.name.user)
        && check.args.db == check.user.name.db;
    let may = |others: Action, own_action: Action, field: &str| {
        check.args.field(field).is_none()
            || check.may(others, db)
            || own && check.may(own_action, db)
    };
    let roles = check.args.field("roles").is_none()
        || check.may(RevokeRole, db) && grants(check, GrantRole, "roles")?;
    Ok(may(ChangePassword, ChangeOwnPassword, "pwd")
        && may(ChangePassword, ChangeOwnPassword, "mechanisms")
        && may(ChangeCustomData, ChangeOwnCustomData, "customData")
        && roles
        && restricts(check))
}

pub fn grant_roles(check: &Check<'_, '_>) -> Result<bool> {
    grants(check, GrantRole, "roles")
}

pub fn revoke_roles(check: &Check<'_, '_>) -> Result<bool> {
    grants(check, RevokeRole, "roles")
}

pub fn create_role(check: &Check<'_, '_>) -> Result<bool> {
    Ok(check.may(CreateRole, Target::Database(check.args.db))
        && grants(check, GrantRole, "roles")?
        && grants_privileges(check, GrantRole)?
        && restricts(check))
}

pub fn update_role(check: &Check<'_, '_>) -> Result<bool> {
    Ok(check.may(RevokeRole, Target::Database(check.args.db))
        && grants(check, GrantRole, "roles")?
        && grants_privileges(check, GrantRole)?
        && restricts(check))
}

pub fn grant_privileges(check: &Check<'_, '_>) -> Result<bool> {
    grants_privileges(check, GrantRole)
}

pub fn revoke_privileges(check: &Check<'_, '_>) -> Result<bool> {
    grants_privileges(check, RevokeRole)
}

/// One's own is always shown.
pub fn users_info(check: &Check<'_, '_>) -> Result<bool> {
    let first = check.args.first;
    let may = |db: &str| check.may(ViewUser, Target::Database(db));
    let named = |v: Val<'_>| -> Result<bool> {
        let name = UserName::parse(v, check.args.db)?;
        Ok(name == check.user.name || may(&name.db))
    };
    if let Some(list) = first.as_array() {
        return list.values().try_fold(true, |all, v| Ok(all && named(v)?));
    }
    match first.as_doc() {
        Some(d) if d.get("forAllDBs").is_some() => Ok(check.may(ViewUser, Target::AnyNormal)),
        Some(_) => named(first),
        None if first.as_str().is_some() => named(first),
        None => Ok(may(check.args.db)),
    }
}

/// One's own roles are always shown.
pub fn roles_info(check: &Check<'_, '_>) -> Result<bool> {
    let first = check.args.first;
    let named = |v: Val<'_>| -> Result<bool> {
        let name = RoleName::parse(v, check.args.db)?;
        Ok(check.user.all_roles.contains(&name) || check.may(ViewRole, Target::Database(&name.db)))
    };
    if let Some(list) = first.as_array() {
        return list.values().try_fold(true, |all, v| Ok(all && named(v)?));
    }
    match first.as_doc().is_some() || first.as_str().is_some() {
        true => named(first),
        false => Ok(check.may(ViewRole, Target::Database(check.args.db))),
    }
}

pub fn merge_users(check: &Check<'_, '_>) -> Result<bool> {
    let all = [
        CreateUser, CreateRole, DropUser, DropRole, GrantRole, RevokeRole,
    ];
    Ok(check.may_all(&all, Target::AnyNormal))
}
