//! Versions on the way to a shard, and the refresh when router or shard knows too little.
//!
//! Invariant: a shard that refuses a version has changed nothing, so the same is sent again when both
//! agree. No wait is without limit.

use crate::metadata::{Cluster, KnownPrimary, Placement, Unsharded};
use crate::operation_time;
use crate::operation_time::end_of_step;
use crate::replica_set::{Member, ReplicaSet, ServerSelection, Terms};
use crate::upstream::{Connection, Wait, error_of, message, message_with};
use crate::{Failure, Outcome, Stale};
use bson::{Doc, DocBuf, Val, Value, Writer, doc};
use errors::{Code, err};
use sharding::agreement::{Agreement, Next, StaleSide, learns};
use sharding::{DbVersion, Ownership, Version};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The version that a shard is told.
pub fn version_for(placement: &Placement, shard: &str) -> Version {
    match placement.table() {
        None => Version::UNSHARDED,
        Some(table) => table.version_of(shard),
    }
}

/// What a shard is told of the database: of a collection that is on its primary shard.
fn database_for(placement: &Placement) -> Option<DbVersion> {
    match placement {
        Placement::Unsharded(Unsharded {
            database,
            table: None,
            ..
        }) => *database,
        _ => None,
    }
}

/// Both, as a shard is told them.
fn say_belief(w: &mut Writer, placement: &Placement, shard: &str) {
    w.open_doc("shardVersion");
    version_for(placement, shard).write(w);
    w.close();
    if let Some(database) = database_for(placement) {
        w.doc("databaseVersion", database.to_doc().as_doc());
    }
}

/// A reply, or why there is none that counts.
pub fn judge(shard: &str, reply: DocBuf) -> Outcome<DocBuf> {
    let Some(e) = error_of(reply.as_doc()) else {
        return Ok(reply);
    };
    if matches!(e.code, Code::StaleConfig | Code::StaleDbVersion) {
        let wanted = reply.get("vWanted").and_then(Val::as_doc);
        let name = reply.get("ns").or(reply.get("db")).and_then(Val::as_str);
        return Err(Failure::Stale(Box::new(Stale {
            shard: shard.into(),
            name: name.unwrap_or_default().into(),
            fenced: reply.get("fenced").is_some_and(Val::truthy),
            of_database: e.code == Code::StaleDbVersion,
            life: wanted.and_then(|v| v.get("t")?.as_timestamp()),
        })));
    }
    // The reply is handed on as the shard made it.
    Ok(reply)
}

/// From where it is taken what the metadata says.
#[derive(Clone, Copy)]
enum Reading {
    /// From what is cached.
    Known,
    /// What has changed is read.
    Changes,
    /// All of it is read.
    All,
}

/// How long a router and its shards have not agreed yet.
struct Patience {
    began: Instant,
    agreement: Agreement,
}

impl Patience {
    fn new() -> Patience {
        Patience {
            began: Instant::now(),
            agreement: Agreement::default(),
        }
    }

    /// What comes after a refusal. Fails when the wait has taken too long.
    fn next(&mut self, stale: &Stale) -> Outcome<Next> {
        match self.agreement.refused(self.began.elapsed(), stale.fenced) {
            Next::GiveUp => Err(Failure::Stale(Box::new(stale.clone()))),
            next => Ok(next),
        }
    }
}

/// How long a shard waits for its fence, before the router asks again.
const FENCE_WAIT_MILLIS: i64 = 500;

/// How long a refused request waits for another one's refresh.
const OTHERS_PATIENCE: Duration = Duration::from_secs(5);

/// A command that a shard works at.
pub struct SentCommand {
    message: Vec<u8>,
    sent: Outcome<Sent>,
}

/// A sent message: its set, its member, its terms, its time limit, and the connection of its reply.
type Sent = (
    Arc<ReplicaSet>,
    Arc<Member>,
    Terms,
    Option<Instant>,
    Outcome<Connection>,
);

impl Cluster {
    /// Waits before the metadata is read, and ends what has left a fence of `name`: a collection's or
    /// a database's. Whether the same may be asked again as it is.
    fn wait(&self, name: &str, stale: &Stale, next: Next) -> bool {
        match next {
            Next::GiveUp => false,
            Next::Again(pause) if stale.of_database => {
                std::thread::sleep(operation_time::at_most(pause));
                true
            }
            Next::Again(pause) => {
                let wait = doc! {"_pandoFence": 1, "ns": name, "wait": FENCE_WAIT_MILLIS};
                let reply = self.on_shard(&stale.shard, "admin", wait.as_doc());
                let waited = reply.is_ok_and(|r| r.get("waited").is_some_and(Val::truthy));
                if !waited {
                    std::thread::sleep(operation_time::at_most(pause));
                }
                false
            }
            Next::Read(pause) => {
                std::thread::sleep(operation_time::at_most(pause));
                false
            }
            Next::Release(pause) => {
                std::thread::sleep(operation_time::at_most(pause));
                if let Err(e) = self.mover.release_fence(self, name, &stale.shard) {
                    tracing::warn!(target: "SHARDING", ns = name, error = %e, "A fence stands");
                }
                false
            }
        }
    }
}

impl Stale {
    /// Whether it is about a collection, or its database, and not about another one.
    fn concerns(&self, ns: &str) -> bool {
        let db = ns.split_once('.').map_or(ns, |(db, _)| db);
        self.name.is_empty() || self.name == ns || self.name == db
    }
}

impl Cluster {
    /// Runs `attempt` with the cached metadata of a collection until router and shards agree. `None`
    /// where the database does not exist. A refusal that names another collection is passed on to the
    /// caller.
    pub fn agree<T>(
        &self,
        ns: &str,
        attempt: impl FnMut(Option<&Placement>) -> Outcome<T>,
    ) -> Outcome<T> {
        let db = ns.split_once('.').map_or(ns, |(db, _)| db);
        let belief = |p: &Option<Placement>, shard: &str| {
            let known = p.as_ref();
            known.map(|p| (version_for(p, shard), database_for(p)))
        };
        let teach =
            |placement: &Option<Placement>, stale: &Stale| match (placement, stale.of_database) {
                (Some(Placement::Unsharded(unsharded)), true) => match unsharded.database {
                    Some(version) => self.teach_database_primary(
                        db,
                        version,
                        &unsharded.shard,
                        &stale.shard,
                        None,
                    ),
                    None => Ok(()),
                },
                _ => self.teach(ns, placement.as_ref(), &stale.shard, stale.life),
            };
        let known = self.placement(ns)?;
        let read = |how: Reading| match how {
            Reading::Known => Ok(self.known_placement(ns)),
            Reading::Changes => self.refresh(ns),
            Reading::All => self.refresh_whole(ns),
        };
        self.rounds(ns, known, attempt, read, belief, teach)
    }

    /// The same of a database: `attempt` sends to its primary shard what it gets.
    pub fn agree_database<T>(
        &self,
        db: &str,
        attempt: impl FnMut(Option<&KnownPrimary>) -> Outcome<T>,
    ) -> Outcome<T> {
        let belief =
            |primary: &Option<KnownPrimary>, _: &str| primary.as_ref().and_then(|p| p.version);
        let teach = |primary: &Option<KnownPrimary>, stale: &Stale| match primary {
            Some(KnownPrimary {
                shard,
                version: Some(version),
            }) => self.teach_database_primary(db, *version, shard, &stale.shard, None),
            _ => Ok(()),
        };
        let known = self.database_primary(db)?;
        let read = |how: Reading| match how {
            Reading::Known => Ok(self.known_database_primary(db)),
            Reading::Changes | Reading::All => self.refresh_database_primary(db),
        };
        self.rounds(db, known, attempt, read, belief, teach)
    }

    /// Attempts until none is stale: where the metadata says something new (`belief`), the router
    /// was behind; otherwise the shard is, and is taught.
    fn rounds<K, B: PartialEq, T>(
        &self,
        name: &str,
        mut known: Option<K>,
        mut attempt: impl FnMut(Option<&K>) -> Outcome<T>,
        read: impl Fn(Reading) -> Outcome<Option<K>>,
        belief: impl Fn(&Option<K>, &str) -> B,
        teach: impl Fn(&Option<K>, &Stale) -> Outcome<()>,
    ) -> Outcome<T> {
        let db = name.split_once('.').map_or(name, |(db, _)| db);
        let mut patience = Patience::new();
        let flight = self.refreshes.of(name);
        loop {
            let ended = flight.ended();
            let stale = match attempt(known.as_ref()) {
                Err(Failure::Stale(stale)) if stale.concerns(name) => stale,
                other => return other,
            };
            operation_time::check()?;
            let next = patience.next(&stale)?;
            let others = operation_time::at_most(OTHERS_PATIENCE);
            let Some(_leader) = flight.lead(ended, others) else {
                known = read(Reading::Known)?.or(known);
                continue;
            };
            let before = belief(&known, &stale.shard);
            let is_new =
                |now: &Option<K>| learns(&before, &belief(now, &stale.shard)) == StaleSide::Router;
            let fenced = if stale.of_database { db } else { name };
            if self.wait(fenced, &stale, next) {
                continue;
            }
            // Others have read it meanwhile.
            let others = read(Reading::Known)?;
            known = match others.is_some() && is_new(&others) {
                true => others,
                false => read(Reading::Changes)?,
            };
            if !is_new(&known) && !stale.fenced {
                known = read(Reading::All)?;
                teach(&known, &stale)?;
            }
        }
    }

    /// Tells a shard what the metadata says of a collection; of one that has no chunks, that `life`
    /// has ended, which the shard knew before the metadata was read.
    pub fn teach(
        &self,
        ns: &str,
        placement: Option<&Placement>,
        shard: &str,
        life: Option<u64>,
    ) -> Outcome<()> {
        let concern = doc! {"w": "majority"};
        let command = match (placement.and_then(Placement::table), life) {
            (Some(table), _) => doc! {
                "_pandoOwnership": 1,
                "ownership": Ownership::of(table, shard).to_doc(),
                "writeConcern": concern,
            },
            (None, Some(life)) => doc! {
                "_pandoOwnership": 1,
                "drop": ns,
                "life": Value::timestamp(life),
                "writeConcern": concern,
            },
            (None, None) => return Ok(()),
        };
        self.on_shard(shard, "admin", command.as_doc())?;
        Ok(())
    }

    /// Tells a shard the version and the primary of a database; sent under the database's lock.
    pub fn teach_database_primary(
        &self,
        db: &str,
        version: DbVersion,
        primary: &str,
        shard: &str,
        turn: Option<i64>,
    ) -> Outcome<()> {
        let database_primary = sharding::DatabasePrimary {
            db: db.into(),
            version,
            primary: primary == shard,
            fence: None,
            turn: 0,
        };
        self.run_pando_home(shard, doc! {"home": database_primary.to_doc()}, turn)
    }

    /// What a shard is told of a database (`_pandoHome`).
    pub fn run_pando_home(&self, shard: &str, what: DocBuf, turn: Option<i64>) -> Outcome<()> {
        let mut w = Writer::new();
        w.i32("_pandoHome", 1).extend(what.as_doc());
        if let Some(turn) = turn {
            w.i64("turn", turn);
        }
        w.doc("writeConcern", doc! {"w": "majority"}.as_doc());
        self.on_shard(shard, "admin", w.finish().as_doc()).map(drop)
    }

    /// Tells every shard.
    pub fn teach_all(&self, ns: &str) -> Outcome<()> {
        let placement = self.refresh(ns)?;
        for shard in self.shard_names()? {
            self.teach(ns, placement.as_ref(), &shard, None)?;
        }
        Ok(())
    }

    /// Sends commands to shards at once, each with its version, and gives their replies in the same
    /// order. One that is stale makes all stale: nothing of them may count.
    pub fn scatter(
        &self,
        placement: &Placement,
        commands: &[(Arc<str>, DocBuf)],
    ) -> Outcome<Vec<DocBuf>> {
        let message = |(shard, c): &(Arc<str>, DocBuf)| {
            let message = self.versioned(placement, shard, c.as_doc(), &[]);
            (shard.clone(), message)
        };
        let all = commands.iter().map(message).collect();
        let mut replies = Vec::with_capacity(commands.len());
        let mut failure = None;
        for ((shard, _), reply) in commands.iter().zip(self.send_all(all)) {
            match reply.and_then(|reply| self.judge(shard, reply)) {
                Ok(reply) => replies.push(reply),
                Err(e) => failure = failure.or(Some(e)),
            }
        }
        match failure {
            None => Ok(replies),
            Some(e) => Err(e),
        }
    }

    /// Sends commands to shards at once as they are, and gives the reply of each in the same order.
    /// All replies are read, so that their connections can be used again.
    pub fn together(&self, commands: &[(Arc<str>, DocBuf)]) -> Vec<Outcome<DocBuf>> {
        let message = |(shard, c): &(Arc<str>, DocBuf)| (shard.clone(), message(c.as_doc(), &[]));
        self.send_all(commands.iter().map(message).collect())
    }

    /// Tells the shards that this process has asked anything; replies are of no interest.
    pub fn tell_used_shards(&self, command: &DocBuf) {
        let shards = self.used_shards().into_iter();
        let asks: Vec<_> = shards.map(|shard| (shard, command.clone())).collect();
        self.together(&asks);
    }

    fn send_all(&self, messages: Vec<(Arc<str>, Vec<u8>)>) -> Vec<Outcome<DocBuf>> {
        let messages = messages.into_iter();
        let under_way: Vec<_> = messages.map(|(to, what)| self.begin(&to, what)).collect();
        under_way.into_iter().map(received).collect()
    }

    /// Has a shard begin; [`received`] waits for its end.
    pub fn begin(&self, shard: &str, message: Vec<u8>) -> SentCommand {
        let sent = self.shard(shard).and_then(|set| {
            let selection = ServerSelection::of(&message)?;
            let until = end_of_step(selection.most);
            let member = set.choose(&selection)?;
            let late = || set.is_late();
            let connection = member.upstream.send(&message, &Wait::to(until, &late));
            let terms = selection.terms;
            Ok((set.clone(), member, terms, until, connection))
        });
        SentCommand { message, sent }
    }

    /// Sends one command with its version to one shard.
    pub fn send(
        &self,
        placement: &Placement,
        shard: &str,
        command: Doc<'_>,
        sequences: &[wire::Sequence<'_>],
    ) -> Outcome<DocBuf> {
        let message = self.versioned(placement, shard, command, sequences);
        let reply = self.shard(shard)?.call(&message)?;
        self.judge(shard, reply)
    }

    /// A reply that counts, or why there is none.
    pub fn judge(&self, shard: &str, reply: DocBuf) -> Outcome<DocBuf> {
        self.note_time(reply.as_doc());
        judge(shard, reply)
    }

    /// The command's message with the router's versions and the cluster's time: the shard's write is
    /// later than all that was seen before.
    pub fn versioned(
        &self,
        placement: &Placement,
        shard: &str,
        command: Doc<'_>,
        sequences: &[wire::Sequence<'_>],
    ) -> Vec<u8> {
        let fields = |w: &mut Writer| {
            say_belief(w, placement, shard);
            self.say_time(w);
        };
        let shorter = operation_time::shortened(command);
        let command = shorter.as_ref().map_or(command, DocBuf::as_doc);
        message_with(command, fields, sequences)
    }

    /// What says to a shard where the router believes the collection to be that a pipeline there
    /// writes to.
    pub fn target_of(&self, ns: &str, placement: &Placement, shard: &str) -> DocBuf {
        let mut w = Writer::new();
        w.str("ns", ns);
        say_belief(&mut w, placement, shard);
        w.finish()
    }

    /// Adds the cluster's time to a command.
    pub fn say_time(&self, w: &mut Writer) {
        let time = self.time();
        if time > 0 {
            w.open_doc("$clusterTime")
                .timestamp("clusterTime", time)
                .close();
        }
    }
}

/// The reply to a sent request.
pub fn received(under_way: SentCommand) -> Outcome<DocBuf> {
    let (set, member, terms, until, connection) = under_way.sent?;
    let late = || set.is_late();
    let wait = Wait::to(until, &late);
    let reply = connection.and_then(|connection| member.upstream.receive(connection, &wait));
    match set.judge(terms, &member, reply) {
        Some(reply) => reply,
        None => set.call_until(&under_way.message, until),
    }
}

/// The error of a command that needs a database which is not there.
pub fn no_database(db: &str) -> Failure {
    Failure::Client(err!(NamespaceNotFound, "database {db} not found"))
}
