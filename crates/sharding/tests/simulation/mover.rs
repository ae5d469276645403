//! Changes of a collection's chunks: takes the lock, ends abandoned moves, moves, cuts, joins.

use crate::config::{Conflict, Write, uuid_of};
use crate::documents::Turn;
use crate::history::Planted;
use crate::names::{DB, Ns, SHARDED, name_of, ns_named};
use crate::router::{Failure, Outcome, Placement, Router};
use crate::runtime::together;
use crate::shard::{Document, KEYS, Refusal, Shard};
use bson::{DocBuf, ObjectId, Val, Value, doc};
use errors::Stop;
use sharding::follow::{Follow, FollowRequest, Newest, Touched};
use sharding::moving::{self, EndMoveStep, MoveState, MoveStep, RangeMove, change_of_owner};
use sharding::split::{cut_chunk, join};
use sharding::two_phase::Shard as Name;
use sharding::{Chunk, Fence, PlaceRange, ReplacedChunks, RoutingTable, lock};
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;

/// Held until it and its parts are dropped; then it is renewed no more.
pub struct Held {
    pub name: String,
    pub by: String,
    turn: Cell<i64>,
    /// The `_id` of the pending move of a part of it.
    part: Option<String>,
    whole: Rc<Whole>,
}

/// What the parts of a lock share.
struct Whole {
    /// The last turn of any part.
    last: Cell<i64>,
    deciding: Cell<Deciding>,
    renews: Rc<Cell<bool>>,
}

/// Whether a part changes the owner of its range.
#[derive(Clone, Copy, PartialEq)]
enum Deciding {
    No,
    Yes,
    /// It is not known what became of that.
    Doubt,
}

impl Held {
    pub fn turn(&self) -> i64 {
        self.turn.get()
    }

    pub fn fence(&self) -> String {
        moving::fence_of(&self.by, self.turn())
    }

    fn own(&self) -> DocBuf {
        lock::held(&self.name, &self.by)
    }

    /// The `_id` of its pending move.
    fn id(&self) -> &str {
        self.part.as_deref().unwrap_or(&self.name)
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        self.renews.set(false);
    }
}

struct Move {
    ns: Ns,
    table: Rc<RoutingTable>,
    from: Name,
    to: Name,
    min: DocBuf,
    max: DocBuf,
    range: PlaceRange,
}

pub fn failed(stop: Stop) -> Failure {
    Failure::Refused(Refusal::Never(stop.into_error().to_string()))
}

pub fn refused(_: Conflict) -> Failure {
    Failure::Refused(Refusal::Never("the metadata has changed".into()))
}

impl Router {
    pub fn id(&self) -> ObjectId {
        let mut bytes = [1; 12];
        bytes[4..].copy_from_slice(&self.sim.below(u64::MAX).to_be_bytes());
        ObjectId(bytes)
    }

    pub async fn write_config(&self, writes: Vec<Write>) -> Outcome<()> {
        let config = self.config.clone();
        let process = config.process;
        let make = move || config.clone().change(writes.clone());
        let done = self.sim.call(process, make).await.ok_or(Failure::Lost)?;
        done.map_err(refused)
    }

    /// A change of the metadata under the lock.
    pub async fn change(&self, held: &Held, writes: Vec<Write>) -> Outcome<()> {
        let own = self.holds(held);
        self.write_config([vec![own], writes].concat()).await
    }

    /// A write that fails unless the lock is held then.
    pub fn holds(&self, held: &Held) -> Write {
        let renewed = lock::renewed(self.sim.now() as i64);
        Write::Update("locks", held.own(), renewed)
    }

    pub async fn lock(self: &Rc<Router>, of: &str) -> Outcome<Held> {
        let by = format!("{:x}", self.sim.below(u64::MAX));
        let config = self.config.clone();
        let (process, name, who) = (config.process, of.to_string(), by.clone());
        let make = move || config.clone().take(name.clone(), who.clone());
        let taken = self.sim.call(process, make).await.ok_or(Failure::Lost)?;
        let turn = taken.ok_or(refused(Conflict))?;
        let renews = Rc::new(Cell::new(true));
        let held = Held {
            name: of.into(),
            by,
            turn: Cell::new(turn),
            part: None,
            whole: Rc::new(Whole {
                last: Cell::new(turn),
                deciding: Cell::new(Deciding::No),
                renews: renews.clone(),
            }),
        };
        let (this, own) = (self.clone(), held.own());
        self.sim.spawn(self.sim.process(), async move {
            loop {
                this.sim.sleep(lock::RENEW.as_millis() as u64).await;
                if !renews.get() {
                    return;
                }
                let renewed = lock::renewed(this.sim.now() as i64);
                let write = Write::Update("locks", own.clone(), renewed);
                let _ = this.write_config(vec![write]).await;
            }
        });
        Ok(held)
    }

    pub async fn free(&self, held: Held) {
        let write = Write::Update("locks", held.own(), lock::freed());
        drop(held);
        for _ in 0..3 {
            if !matches!(
                self.write_config(vec![write.clone()]).await,
                Err(Failure::Lost)
            ) {
                return;
            }
        }
    }

    /// For one of several moves at once, with a turn of its own.
    async fn part(&self, held: &Held) -> Outcome<Held> {
        let mut part = Held {
            name: held.name.clone(),
            by: held.by.clone(),
            turn: Cell::new(held.turn()),
            part: None,
            whole: held.whole.clone(),
        };
        self.next_turn(&part).await?;
        part.part = Some(part.fence());
        Ok(part)
    }

    /// After a rollback of the same holder, late messages carry an earlier turn.
    async fn take_turn(&self, held: &Held) -> Outcome<()> {
        if self.history.has(Planted::SameTurnAtTheEnd) {
            return Ok(());
        }
        self.next_turn(held).await
    }

    async fn next_turn(&self, held: &Held) -> Outcome<()> {
        let next = lock::next_turn(self.sim.now() as i64);
        let write = Write::Update("locks", held.own(), next);
        self.write_config(vec![write]).await?;
        held.whole.last.set(held.whole.last.get() + 1);
        held.turn.set(held.whole.last.get());
        Ok(())
    }

    /// The pending moves that match, each in a final state.
    async fn decided(&self, filter: DocBuf) -> Outcome<Vec<DocBuf>> {
        loop {
            let found = self.read_config("migrations", filter.clone()).await?;
            let Some(left) = found.iter().find(|left| state(left) == MoveState::Moving) else {
                return Ok(found);
            };
            let q = moving::undecided(text(left, "_id"), text(left, "by"), turn_of(left));
            let _ = self
                .write_config(vec![Write::Update("migrations", q, moving::rolled_back())])
                .await;
        }
    }

    pub async fn release_fence(&self, name: &str, shard: &str) -> Outcome<()> {
        for left in self.decided(moving::under_way_at(name, shard)).await? {
            self.end_move(None, name, &left).await?;
        }
        Ok(())
    }

    pub async fn end_pending_moves(&self, held: &Held) -> Outcome<()> {
        let own = moving::under_way(&held.name, held.part.as_deref());
        for left in self.decided(own).await? {
            if state(&left) != MoveState::Moved && turn_of(&left) == held.turn() {
                self.take_turn(held).await?;
            }
            self.end_move(Some(held), &held.name, &left).await?;
            let gone = Write::Remove("migrations", doc! {"_id": text(&left, "_id")});
            self.change(held, vec![gone]).await?;
        }
        Ok(())
    }

    async fn end_move(&self, held: Option<&Held>, name: &str, left: &DocBuf) -> Outcome<()> {
        match name == DB {
            true => self.end_primary_change(held, left).await,
            false => self.end_range(held, ns_named(name), left).await,
        }
    }

    /// Records a move that is about to begin.
    pub async fn begin(&self, held: &Held, kind: &str, fields: &DocBuf) -> Outcome<()> {
        let names = (held.id(), held.name.as_str());
        let begins = moving::beginning(names, kind, &held.by, held.turn(), fields);
        self.change(held, vec![Write::Insert("migrations", begins)])
            .await
    }

    /// Has a change of the metadata decide that it is done.
    pub fn decides(&self, held: &Held) -> Write {
        let undecided = moving::undecided(held.id(), &held.by, held.turn());
        Write::Update("migrations", undecided, moving::moved())
    }

    async fn end_range(&self, held: Option<&Held>, ns: Ns, left: &DocBuf) -> Outcome<()> {
        let turn = held.map(Held::turn);
        let sides = [text(left, "from").to_string(), text(left, "to").to_string()];
        let range = left.get("range").and_then(Val::as_doc).expect("a range");
        let range = PlaceRange::parse(range).expect("a range");
        let mut table = None;
        for step in moving::ending(state(left) == MoveState::Moved, held.is_some()) {
            match step {
                EndMoveStep::Tell => {
                    let now = self.table_of(ns).await?;
                    for side in &sides {
                        self.teach(&now, side, turn).await?;
                    }
                    self.take_over(ns, Placement::Table(now.clone()));
                    table = Some(now);
                }
                EndMoveStep::Lift => {
                    let by = fence(left);
                    self.try_on(&sides[0], move |s| s.lift(ns, by.clone(), turn))
                        .await?;
                }
                EndMoveStep::Clean => {
                    let owner = table.as_ref().and_then(|t| t.chunk_at(&range.low));
                    if self.history.has(Planted::SourceLeft) && ns != SHARDED {
                        continue;
                    }
                    for side in moving::without_the_range(&sides, owner) {
                        let (range, turn) = (range.clone(), turn.unwrap_or(0));
                        self.try_on(side, move |s| s.clean(ns, range.clone(), turn, false))
                            .await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Changes a chunk under the lock. `to`: the shard that gets a range, if any.
    pub async fn rearrange(self: Rc<Router>, key: u32, to: Option<Name>) -> Outcome<()> {
        let held = self.lock(&name_of(SHARDED)).await?;
        let done = self.rearrange_under(&held, key, to).await;
        self.free(held).await;
        done
    }

    async fn rearrange_under(
        self: &Rc<Router>,
        held: &Held,
        key: u32,
        to: Option<Name>,
    ) -> Outcome<()> {
        self.end_pending_moves(held).await?;
        let table = self.table_of(SHARDED).await?;
        let at = doc! {"k": key as i32};
        let place = table.key().place_of(at.as_doc()).map_err(failed)?;
        let chunk = table.chunk_at(&place).expect("a chunk").clone();
        if let Some(to) = to {
            let second = self.second_move(&table, [&chunk.shard, &to]);
            return match second {
                Some((other, there)) => {
                    let all = other.min.clone();
                    let moves = [(chunk, at, to), (other, all, there)];
                    self.move_both(held, table, moves).await
                }
                None => self.move_range(held, table, chunk, at, to).await,
            };
        }
        let replaced = match self.sim.one_in(2) {
            true => cut_chunk(&table, &chunk, &[at], || self.id()),
            false => {
                let high = table.key().range(chunk.min.as_doc(), chunk.max.as_doc());
                let high = high.map_err(failed)?.high;
                let next = high.and_then(|h| table.chunk_at(&h));
                let max = next.map_or(&chunk.max, |c| &c.max);
                let range = table.key().range(chunk.min.as_doc(), max.as_doc());
                join(&table, &range.map_err(failed)?, || self.id())
            }
        };
        let replaced = replaced.map_err(failed)?;
        self.history.count("cuts and joins");
        self.change(held, replace(held, &replaced)).await
    }

    /// A chunk of another shard that goes to yet another, if there are so many.
    fn second_move(&self, table: &RoutingTable, busy: [&Name; 2]) -> Option<(Chunk, Name)> {
        if busy[0] == busy[1] {
            return None;
        }
        let chunk = table.chunks().find(|c| !busy.contains(&&c.shard))?;
        let names = self.shards.iter().map(|s| &s.name);
        let mut free = names.filter(|name| !busy.contains(name) && **name != chunk.shard);
        Some((chunk.clone(), free.next()?.clone()))
    }

    /// Two moves at once, which have no shard in common.
    async fn move_both(
        self: &Rc<Router>,
        held: &Held,
        table: Rc<RoutingTable>,
        moves: [(Chunk, DocBuf, Name); 2],
    ) -> Outcome<()> {
        let mut both: Vec<Pin<Box<dyn Future<Output = Outcome<()>>>>> = Vec::new();
        for (chunk, at, to) in moves {
            let part = self.part(held).await?;
            let (this, table) = (self.clone(), table.clone());
            both.push(Box::pin(async move {
                this.move_range(&part, table, chunk, at, to).await
            }));
        }
        self.history.count("two moves at once");
        let done = together(&self.sim, both).await;
        if done.iter().all(Result::is_ok) {
            self.history.count("two moves at once that were done");
        }
        done.into_iter().collect()
    }

    async fn move_range(
        self: &Rc<Router>,
        held: &Held,
        table: Rc<RoutingTable>,
        chunk: Chunk,
        at: DocBuf,
        to: Name,
    ) -> Outcome<()> {
        // All of the chunk, or a part of it.
        let (mut min, mut max) = (chunk.min.clone(), chunk.max.clone());
        match self.sim.below(4) {
            0 => max = at,
            1 => min = at,
            _ => {}
        }
        if table.key().range(min.as_doc(), max.as_doc()).is_err() {
            return Ok(());
        }
        self.move_part(held, table, chunk.shard, (min, max), to)
            .await
    }

    /// Moves a part of a chunk.
    pub async fn move_part(
        self: &Rc<Router>,
        held: &Held,
        table: Rc<RoutingTable>,
        from: Name,
        (min, max): (DocBuf, DocBuf),
        to: Name,
    ) -> Outcome<()> {
        if from == to {
            return Ok(());
        }
        let range = table.key().range(min.as_doc(), max.as_doc());
        let moving = Move {
            ns: ns_named(&table.entry.ns),
            from,
            to,
            min,
            max,
            range: range.map_err(failed)?,
            table,
        };
        let fields = doc! {
            "from": &*moving.from, "to": &*moving.to, "range": moving.range.to_doc(),
        };
        self.begin(held, "range", &fields).await?;
        let done = self.transfer(held, &moving).await;
        self.history.count(match (done.is_ok(), moving.ns) {
            (true, SHARDED) => "moves",
            (true, _) => "moves of collections",
            (false, _) => "failed moves",
        });
        let ended = self.end_pending_moves(held).await;
        done.and(ended)
    }

    async fn transfer(self: &Rc<Router>, held: &Held, m: &Move) -> Outcome<()> {
        let mut steps = RangeMove::new();
        let mut follow = Follow::new();
        while let Some(step) = steps.step(self.sim.clock()).map_err(failed)? {
            self.stop_at_times().await;
            self.step(step, held, m, &mut follow).await?;
            steps.done();
        }
        Ok(())
    }

    /// A mover outlives its lock, and goes on with its step when another has it.
    pub async fn stop_at_times(&self) {
        if self.sim.one_in(self.sim.stalls.get()) {
            self.history.count("movers stopped");
            let process = self.sim.process();
            self.sim.stop(process, 10_500 + self.sim.below(3500));
            self.sim.sleep(1).await;
        }
    }

    async fn step(
        &self,
        step: MoveStep,
        held: &Held,
        m: &Move,
        follow: &mut Follow,
    ) -> Outcome<()> {
        let (ns, turn) = (m.ns, held.turn());
        let range = m.range.clone();
        match step {
            MoveStep::TellDonor => self.teach(&m.table, &m.from, Some(turn)).await,
            MoveStep::TellRecipient => self.teach(&m.table, &m.to, Some(turn)).await,
            MoveStep::MakeLike => self.on(&m.to, move |s| s.make_like(ns)).await,
            MoveStep::Expect => {
                let nothing = (m.table.key().clone(), m.table.version());
                let ask = move |s: Rc<Shard>| s.expect(ns, nothing.clone(), range.clone(), turn);
                self.try_on(&m.to, ask).await
            }
            MoveStep::Clear => {
                let ask = move |s: Rc<Shard>| s.clean(ns, range.clone(), turn, true);
                self.try_on(&m.to, ask).await
            }
            MoveStep::Mark => self.follow(held, m, follow).await,
            MoveStep::Copy => self.copy(held, m, follow.time()).await,
            MoveStep::ComeNear => {
                follow.come_near(self.sim.clock());
                self.follow(held, m, follow).await
            }
            MoveStep::Finish => {
                follow.finish(self.sim.clock());
                self.follow(held, m, follow).await?;
                self.copy_outcomes(m).await?;
                self.pass_time(m).await
            }
            MoveStep::CopyOutcomes => self.copy_outcomes(m).await,
            MoveStep::Fence if self.history.has(Planted::FenceSkipped) => Ok(()),
            MoveStep::Fence => {
                let fence = Fence {
                    by: held.fence(),
                    range,
                    firm: false,
                };
                self.try_on(&m.from, move |s| s.raise(ns, fence.clone(), turn))
                    .await
            }
            MoveStep::ChangeOwner => self.change_owner(held, m).await,
        }
    }

    async fn copy_outcomes(&self, m: &Move) -> Outcome<()> {
        let records = self.on(&m.from, |s| s.outcomes()).await?;
        self.on(&m.to, move |s| s.take_outcomes(records.clone()))
            .await
    }

    async fn pass_time(&self, m: &Move) -> Outcome<()> {
        let time = self.on(&m.from, |s| async move { s.time() }).await?;
        self.on(&m.to, move |s| s.reach(time)).await
    }

    /// Parts of a lock do so one after the other, each when it is known what became of the other.
    async fn change_owner(&self, held: &Held, m: &Move) -> Outcome<()> {
        let Some(part) = &held.part else {
            return self.change_owner_by(&m.table, held, m).await;
        };
        let deciding = &held.whole.deciding;
        let at_once = self.history.has(Planted::OwnersChangedAtOnce);
        while deciding.get() == Deciding::Yes && !at_once {
            self.sim.sleep(1).await;
        }
        if deciding.get() == Deciding::Doubt {
            return Err(refused(Conflict));
        }
        deciding.set(Deciding::Yes);
        let table = match self.history.has(Planted::OldTableAtTheEnd) {
            true => Ok(m.table.clone()),
            false => self.table_of(m.ns).await,
        };
        let mut done = match table {
            Ok(table) => self.change_owner_by(&table, held, m).await,
            Err(e) => Err(e),
        };
        let mut known = Deciding::No;
        if done.is_err() {
            let own = moving::under_way(&held.name, Some(part));
            if let Err(e) = self.decided(own).await {
                (known, done) = (Deciding::Doubt, Err(e));
            }
        }
        deciding.set(known);
        done
    }

    async fn change_owner_by(&self, table: &RoutingTable, held: &Held, m: &Move) -> Outcome<()> {
        let bounds = (&m.min, &m.max);
        let replaced = change_of_owner(table, bounds, &m.to, self.sim.now(), || self.id());
        let mut writes = replace(held, &replaced.map_err(failed)?);
        writes.push(self.decides(held));
        self.change(held, writes).await
    }

    async fn follow(&self, held: &Held, m: &Move, follow: &mut Follow) -> Outcome<()> {
        while let Some(ask) = follow.ask() {
            match ask {
                FollowRequest::Changes(after) => {
                    let (ns, range) = (m.ns, m.range.clone());
                    let ask = move |s: Rc<Shard>| s.changes(ns, after, range.clone());
                    let changes = self.try_on(&m.from, ask).await?;
                    let heard = follow.heard(changes, self.sim.clock());
                    heard.map_err(failed)?;
                }
                FollowRequest::Renew(touched) => {
                    self.renew(held, m, follow.time(), &touched).await?;
                    follow.put(Vec::new(), self.sim.clock()).map_err(failed)?;
                }
            }
        }
        Ok(())
    }

    fn turn(held: &Held, m: &Move) -> Turn {
        Turn {
            ns: m.ns,
            life: m.table.entry.timestamp,
            turn: held.turn(),
            range: m.range.clone(),
        }
    }

    /// Puts all of the range that the donor has at the recipient.
    async fn copy(&self, held: &Held, m: &Move, time: u64) -> Outcome<()> {
        let found = self.read_at_donor(m, time, None).await?;
        let turn = Router::turn(held, m);
        self.try_on(&m.to, move |s| s.put(turn.clone(), found.clone()))
            .await
    }

    async fn read_at_donor(
        &self,
        m: &Move,
        time: u64,
        ids: Option<Vec<u32>>,
    ) -> Outcome<Vec<Document>> {
        let (ns, range) = (m.ns, m.range.clone());
        let ask = move |s: Rc<Shard>| s.read((ns, time), ids.clone(), range.clone());
        self.try_on(&m.from, ask).await
    }

    /// Puts the newest states of documents in the place of what the recipient has of them.
    async fn renew(&self, held: &Held, m: &Move, time: u64, touched: &[Touched]) -> Outcome<()> {
        let number = |v: &Value| v.as_val().to_i64_exact().expect("an id") as u32;
        let ids: Vec<u32> = touched.iter().map(|t| number(&t.id)).collect();
        let (range, turn) = (m.range.clone(), Router::turn(held, m));
        let ask = move |s: Rc<Shard>| s.remove(turn.clone(), ids.clone(), range.clone());
        self.try_on(&m.to, ask).await?;
        let (mut documents, mut unknown) = (Vec::new(), Vec::new());
        for one in touched {
            match &one.newest {
                Newest::Unknown => unknown.push(number(&one.id)),
                Newest::Gone => {}
                Newest::Document(d) => documents.push(Document {
                    id: number(&one.id),
                    value: d.get("value").and_then(Val::to_i64_exact).expect("a value"),
                }),
            }
        }
        if !unknown.is_empty() {
            documents.extend(self.read_at_donor(m, time, Some(unknown)).await?);
        }
        let turn = Router::turn(held, m);
        self.try_on(&m.to, move |s| s.put(turn.clone(), documents.clone()))
            .await
    }

    /// Leaves nothing pending: ends abandoned moves, and takes abandoned locks from their holders.
    pub async fn settle(self: Rc<Router>) -> Outcome<()> {
        let mut names = Vec::new();
        for collection in ["migrations", "locks"] {
            for found in self.read_config(collection, DocBuf::default()).await? {
                let is_free = text(&found, "by").is_empty();
                let of = if collection == "locks" { "_id" } else { "ns" };
                let name = text(&found, of).to_string();
                if !is_free && !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        for name in names {
            let held = self.lock(&name).await?;
            let done = self.end_pending_moves(&held).await;
            self.free(held).await;
            done?;
        }
        Ok(())
    }

    pub fn any_key(&self) -> u32 {
        self.sim.below(u64::from(KEYS)) as u32
    }
}

fn turn_of(left: &DocBuf) -> i64 {
    left.get("turn")
        .and_then(Val::to_i64_exact)
        .expect("a turn")
}

/// The fence of a pending move.
pub fn fence(left: &DocBuf) -> String {
    moving::fence_of(text(left, "by"), turn_of(left))
}

pub fn text<'d>(d: &'d DocBuf, name: &str) -> &'d str {
    d.get(name).and_then(Val::as_str).unwrap_or_default()
}

pub fn state(left: &DocBuf) -> MoveState {
    MoveState::parse(text(left, "state"))
}

fn replace(held: &Held, replaced: &ReplacedChunks) -> Vec<Write> {
    let turn = held.whole.last.get() as u64;
    let uuid = uuid_of(ns_named(&held.name));
    let gone = replaced.old.iter();
    let gone = gone.map(|c| Write::Remove("chunks", doc! {"_id": c.id}));
    let new = replaced.new.iter();
    let new = new.map(|c| Write::Insert("chunks", Chunk { turn, ..c.clone() }.to_doc(&uuid)));
    gone.chain(new).collect()
}
