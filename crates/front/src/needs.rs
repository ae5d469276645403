//! What each command needs, beyond what one action on one resource says: by its arguments.
//!
//! A user that creates or changes users and roles must have the right to grant what they get.

use crate::args::{Args, check_explained_db};
use crate::bulk_write::Addressed;
use crate::check::Check;
use crate::map_reduce::Out;
use crate::{idl, specification};
use auth::privilege::Privilege;
use auth::{Action, RoleName, Target, UserName};
use bson::{Doc, Elem, Val};
use errors::{Result, Stop, bail};
use query::namespace::{collection_of, db_of};
use query::pipeline::{self, Named};
use smallvec::SmallVec;

/// The privileges that a command needs.
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
    for statement in check.documents("updates") {
        idl::unique("update.updates", statement)?;
    }
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
    for space in &spaces {
        idl::unique("bulkWrite.nsInfo", *space)?;
    }
    for op in check.documents("ops") {
        let op = Addressed::of(op)?;
        let (Addressed::Insert(at) | Addressed::Update { target: at, .. } | Addressed::Delete(at)) =
            op;
        // The command itself reports a place that does not exist.
        let Some(ns) = spaces.get(at).and_then(|d| d.get("ns")?.as_str()) else {
            continue;
        };
        let target = of_ns(ns);
        let allowed = match op {
            Addressed::Insert(_) => check.may(Insert, target),
            Addressed::Update { upsert, .. } => {
                check.may(Update, target) && (!upsert || check.may(Insert, target))
            }
            Addressed::Delete(_) => check.may(Remove, target),
        };
        if !allowed || !bypasses(check, target) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub fn aggregate(check: &Check<'_, '_>) -> Result<bool> {
    let collection = check.args.first.as_str();
    match check.args.field("pipeline") {
        Some(pipeline) => pipeline_of(check, check.args.db, collection, pipeline),
        None => begins(check, check.args.db, collection, "", Val::NULL),
    }
}

/// Whether a pipeline may read what it begins with, and do what its stages do. `collection` is
/// `None` where it reads none. Fails as its parser does where it does not say what it reads or writes.
fn pipeline_of(
    check: &Check<'_, '_>,
    db: &str,
    collection: Option<&str>,
    stages: Val<'_>,
) -> Result<bool> {
    let stages = stages_of(stages)?;
    let (name, spec) = stages.first().map_or(("", Val::NULL), |e| (e.name, e.val));
    let reads = begins(check, db, collection, name, spec)?;
    Ok(all_of(check, db, &stages)? && reads)
}

/// All stages, before a right to any is asked for: what is wrong with the pipeline as such is told to
/// every user.
fn stages_of<'a>(stages: Val<'a>) -> Result<SmallVec<[Elem<'a>; 8]>> {
    let mut all = SmallVec::new();
    for stage in pipeline::written(stages)? {
        let stage = stage?;
        // Those that start so are of routers.
        if !stage.name.starts_with("$_") {
            pipeline::check_stage(stage.name)?;
        }
        all.push(stage);
    }
    Ok(all)
}

/// Whether a pipeline whose first stage is this may read what it begins with.
fn begins(
    check: &Check<'_, '_>,
    db: &str,
    collection: Option<&str>,
    stage: &str,
    spec: Val<'_>,
) -> Result<bool> {
    let target = match collection {
        Some(c) => Target::Collection(db, c),
        None => Target::Database(db),
    };
    let asks = |option: &str| -> Result<bool> {
        let d = options(stage, spec)?;
        Ok(d.get(option).is_some_and(|v| v.truthy()))
    };
    Ok(match stage {
        "$collStats" => check.may(CollStats, target),
        "$indexStats" => check.may(IndexStats, target),
        "$planCacheStats" => check.may(PlanCacheRead, target),
        "$listSearchIndexes" => check.may(ListSearchIndexes, target),
        // Every user may see its own.
        "$currentOp" => !asks("allUsers")? || check.may(Inprog, Target::Cluster),
        "$listSessions" | "$listLocalSessions" => {
            let others = asks("allUsers")? || options(stage, spec)?.get("users").is_some();
            !others || check.may(ListSessions, Target::Cluster)
        }
        "$shardedDataDistribution" => check.may(ShardedDataDistribution, Target::Cluster),
        "$querySettings" => check.may(QuerySettings, Target::Cluster),
        "$queryStats" => check.may(QueryStatsRead, Target::Cluster),
        "$documents" => true,
        "$changeStream" => {
            let target = match asks("allChangesForCluster")? {
                true => Target::AnyNormal,
                false => target,
            };
            check.may_all(&[Find, ChangeStream], target)
        }
        _ => check.may(Find, target),
    })
}

/// The options of a stage, none of them given twice: the stage reads the same.
fn options<'a>(stage: &str, spec: Val<'a>) -> Result<Doc<'a>> {
    idl::unique(stage, spec.as_doc().unwrap_or(Doc::EMPTY))
}

/// Whether the user may have done what a stage does besides reading its input.
fn stage(check: &Check<'_, '_>, db: &str, stage: Elem<'_>) -> Result<bool> {
    Ok(match Named::of(stage, db)? {
        Named::Nothing => true,
        Named::Joined { from, pipeline } => match (from, pipeline) {
            (Some(ns), Some(pipeline)) => pipeline_of(check, &ns.db, Some(&ns.coll), pipeline)?,
            (Some(ns), None) => check.may(Find, Target::Collection(&ns.db, &ns.coll)),
            (None, Some(pipeline)) => all_of(check, db, &stages_of(pipeline)?)?,
            (None, None) => true,
        },
        Named::Branches(pipelines) => {
            let mut all = pipelines.iter();
            all.try_fold(true, |may, (_, stages)| {
                Ok::<_, Stop>(all_of(check, db, &stages_of(*stages)?)? && may)
            })?
        }
        Named::Replaced(ns) => {
            let target = Target::Collection(&ns.db, &ns.coll);
            check.may_all(&[Insert, Remove], target) && bypasses(check, target)
        }
        Named::Merged {
            into,
            updates,
            inserts,
        } => {
            let target = Target::Collection(&into.db, &into.coll);
            (!updates || check.may(Update, target))
                && (!inserts || check.may(Insert, target))
                && bypasses(check, target)
        }
    })
}

/// Looks at all stages, and does not end at one that the user may not: the others may be wrong.
fn all_of(check: &Check<'_, '_>, db: &str, stages: &[Elem<'_>]) -> Result<bool> {
    let mut all = stages.iter();
    all.try_fold(true, |may, e| Ok(stage(check, db, *e)? && may))
}

pub fn map_reduce(check: &Check<'_, '_>) -> Result<bool> {
    let writes = match check.args.field("out").map(Out::parse).transpose()? {
        Some(Out::Collection { mode, db, name }) => {
            let actions = match mode {
                "replace" => [Insert, Remove],
                _ => [Insert, Update],
            };
            let target = Target::Collection(db.unwrap_or(check.args.db), name);
            check.may_all(&actions, target) && bypasses(check, target)
        }
        Some(Out::Inline) | None => true,
    };
    Ok(check.may(Find, check.target()) && writes)
}

/// What the explained command needs.
pub fn explain(check: &Check<'_, '_>) -> Result<bool> {
    let Some(inner) = check.args.first.as_doc() else {
        return Ok(true);
    };
    let command = inner.first().and_then(|e| specification::lookup(e.name));
    let Some(command) = command.filter(|c| c.name != "explain") else {
        return Ok(true);
    };
    idl::unique(command.name, inner)?;
    check_explained_db(inner, check.args.db)?;
    let args = Args::parse(command.name, inner, Some(check.args.db))?;
    Check {
        subject: check.subject,
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
    // A view shows its source to all its readers.
    let shows = view_of(check, Some(on), check.args.field("pipeline"))?;
    Ok(check.may(CreateCollection, target) && shows)
}

/// Whether the user may read what a view of that source and that pipeline shows. That its pipeline is
/// none the command says.
fn view_of(check: &Check<'_, '_>, on: Option<&str>, pipeline: Option<Val<'_>>) -> Result<bool> {
    let db = check.args.db;
    match pipeline.filter(|p| p.as_array().is_some()) {
        Some(pipeline) => pipeline_of(check, db, on, pipeline),
        None => begins(check, db, on, "", Val::NULL),
    }
}

pub fn coll_mod(check: &Check<'_, '_>) -> Result<bool> {
    let pipeline = check.args.field("pipeline").filter(|v| !v.is_nullish());
    let on = check.args.field("viewOn").filter(|v| !v.is_nullish());
    let reads = match (on, pipeline) {
        (None, None) => true,
        (Some(on), pipeline @ Some(_)) => view_of(check, on.as_str(), pipeline)?,
        // One without the other would show what the view's own other half reads.
        _ => bail!(
            InvalidOptions,
            "Must specify both 'viewOn' and 'pipeline' when modifying a view and auth is enabled"
        ),
    };
    Ok(check.may(CollMod, check.target()) && reads)
}

pub fn rename_collection(check: &Check<'_, '_>) -> Result<bool> {
    let to = check.args.field("to").and_then(|v| v.as_str());
    let (Some(from), Some(to)) = (check.args.first.as_str(), to) else {
        return Ok(true);
    };
    let (source, target) = (of_ns(from), of_ns(to));
    let drops = check.flag("dropTarget");
    // A rename must not give a user read access to a collection.
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

pub fn split_vector(check: &Check<'_, '_>) -> Result<bool> {
    let ns = check.args.first.as_str().unwrap_or("");
    Ok(check.may(SplitVector, of_ns(ns)))
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
pub fn db_check(check: &Check<'_, '_>) -> Result<bool> {
    Ok(check.may(DbCheck, Target::Any))
}

pub fn apply_ops(check: &Check<'_, '_>) -> Result<bool> {
    Ok(check.may(AnyAction, Target::Any))
}

// Users and roles.

/// Whether the user may grant these roles, each in its database.
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
    let own = check.args.first.as_str() == Some(&check.subject.name.user)
        && check.args.db == check.subject.name.db;
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
        Ok(name == *check.subject.name || may(&name.db))
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
        Ok(check.subject.all_roles.contains(&name)
            || check.may(ViewRole, Target::Database(&name.db)))
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
