//! A race of plans: where only running them can tell which is the best, the plan that was chosen and
//! its rivals run in turns until one has the first batch. Without a limit a plan whose entries were too
//! many to count is watched: others that may be as good run beside it in short turns, and all others join
//! when it has read more than was thought. With a limit those join late that read more in all, but in another order: when the
//! one chosen has read much and given nothing ([`join`]).
//!
//! What the winner found is kept, and given first; it goes on from there. So nothing is read twice by
//! it, and nothing is given twice. Which plan has won is remembered for the shape of the query
//! (`catalog::PlanCache`): it then has the longer turns, and the others only enough that it cannot be
//! many times worse than they are.
//!
//! Invariant: the rows of the stream are those of the winner's plan alone. A turn ends between two
//! reads of a scan, where it may go on ([`OpCtx::begin_turn`]).

use super::{Order, RecordStream};
use crate::engine::Engine;
use crate::examined::Examined;
use crate::op::OpCtx;
use crate::read::ReadRequest;
use crate::read::step::Current;
use catalog::{Collection, PlanKey};
use errors::{Result, Stop};
use planner::{Choice, Plan};
use std::collections::VecDeque;
use std::sync::Arc;
use storage::View;

/// The rows of a first batch, as in MongoDB.
const BATCH: u64 = 101;
/// A race also ends when one has so many bytes of rows.
const BATCH_BYTES: usize = 256 << 10;
/// The most plans that run beside the one chosen.
const MOST_RIVALS: usize = 3;
/// The cost of the first turns, in reads of one entry, and by how much later ones are longer.
const FIRST_TURN: u64 = 20;
const GROWTH: f64 = 1.5;
/// The turns of a plan that has won before, and of one that is likely to, are so many times as long as
/// those of the others.
const OF_WINNER: u64 = 4;
const OF_LIKELY: u64 = 2;
/// The same of a plan that is watched, as long as it has read no more than was thought.
const OF_WATCHED: u64 = 6;
/// The first turn of a plan that is watched: no longer than counting it was, which a limit makes short.
const FIRST_WATCHED_TURN: u64 = 1024;
/// A document costs as much as so many entries.
const FETCH: u64 = 4;

/// What a race has kept of its winner's rows, and how its stream goes on.
pub(super) struct Kept {
    rows: VecDeque<(Vec<u8>, Vec<u8>)>,
    then: Box<Order>,
}

/// Plans that join one which has read much and given nothing.
#[derive(Default)]
pub(super) struct Late {
    plans: Vec<Plan>,
    limit: Option<u64>,
}

impl Late {
    /// What the one chosen may read before others join it, in entries.
    pub(super) const AFTER: u64 = 160;

    /// `None` if no plan is to join.
    pub(super) fn of(plans: Vec<Plan>, req: &ReadRequest) -> Option<Box<Late>> {
        let limit = req.limit;
        (!plans.is_empty()).then(|| Box::new(Late { plans, limit }))
    }
}

/// How the turns of a race grow, and which plan has the longer ones.
struct Pace {
    /// The end of the first turn, in reads of one entry.
    turn: u64,
    /// The first plan's turns are so many times as long as those of the others,
    of_first: u64,
    /// until it disappoints: then they are alike.
    alike: bool,
}

/// One plan that runs.
struct Runner {
    stream: RecordStream,
    rows: VecDeque<(Vec<u8>, Vec<u8>)>,
    bytes: usize,
    /// What an earlier race of the shape was won by.
    favourite: bool,
    /// It runs from the beginning, and not only when the first has disappointed.
    begins: bool,
    /// How much it may read before it has disappointed; `None`: no limit.
    watch: Option<u64>,
    ended: bool,
    failed: Option<Stop>,
}

impl Kept {
    /// The next row, while there is one.
    pub(super) fn next(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        self.rows.pop_front()
    }

    /// How the stream goes on behind these rows.
    pub(super) fn then(self) -> Order {
        *self.then
    }
}

/// What a plan did in a trial.
#[derive(Debug)]
pub struct Trial {
    pub returned: u64,
    pub examined: Examined,
    pub sort_bytes: usize,
    pub sort_rows: u64,
    /// It gave all that there is.
    pub ended: bool,
    pub failed: Option<errors::Error>,
}

/// Runs plans in turns of equal length until one has a first batch, or all that there is. No winner is
/// remembered, and the reads count as planning.
pub(crate) fn try_plans(
    ctx: &mut OpCtx,
    view: &View,
    coll: &Arc<Collection>,
    plans: impl Iterator<Item = Plan>,
    req: &ReadRequest,
) -> Result<Vec<Trial>> {
    ctx.need_worker()?;
    let mut runners = Vec::new();
    for plan in plans {
        let (view, coll, vars) = (view.clone(), coll.clone(), req.vars.clone());
        let stream = RecordStream::begin(ctx, view, coll, Arc::new(plan), req.limit, vars)?;
        runners.push(Runner::new(stream, false, true, None));
    }
    let before = ctx.examined;
    let wanted = req.limit.map_or(BATCH, |l| l.clamp(1, BATCH));
    let mut turn = FIRST_TURN;
    // All are asked in each turn: the one that wins may not be the first.
    while !turn_of_all(ctx, &mut runners, turn, wanted)? {
        turn = (turn as f64 * GROWTH) as u64;
    }
    ctx.examined = before;
    ctx.examined.planning += runners.iter().map(Runner::cost).sum::<u64>();
    Ok(runners.into_iter().map(Runner::tried).collect())
}

/// Lets each run until it has read so much; whether one is at its end, or none can go on.
fn turn_of_all(ctx: &mut OpCtx, runners: &mut [Runner], until: u64, wanted: u64) -> Result<bool> {
    let (mut has_ended, mut alive) = (false, 0);
    for r in runners.iter_mut().filter(|r| r.failed.is_none()) {
        has_ended |= r.run(ctx, until, wanted)?;
        alive += usize::from(r.failed.is_none());
    }
    Ok(has_ended || alive == 0)
}

/// Runs the plan that was chosen against its rivals; the stream of the one that wins.
pub(super) fn race(
    ctx: &mut OpCtx,
    view: View,
    coll: Arc<Collection>,
    choice: Choice,
    req: &ReadRequest,
) -> Result<RecordStream> {
    // Nothing may be lost half-way, and it may take long.
    ctx.need_worker()?;
    let key = req.plan_key(&coll);
    let cached = coll.plan_cache.find(&key);
    let watched = choice.watch;
    let late = (!choice.wider.is_empty()).then_some(Late::AFTER);
    let rivals = choice
        .others
        .into_iter()
        .filter(|o| o.rival || watched.is_some());
    let rivals = rivals.map(|o| {
        let most = watched.map(|_| o.cost.most_reads());
        (o.plan, o.rival, most.or(late))
    });
    let wider = choice.wider.into_iter().map(|plan| (plan, false, late));
    let rivals = rivals.chain(wider).take(MOST_RIVALS);
    let plans = std::iter::once((choice.plan, true, watched.or(late))).chain(rivals);
    let mut runners = Vec::with_capacity(1 + MOST_RIVALS);
    for (plan, begins, watch) in plans {
        let favourite = cached.as_ref().is_some_and(|c| c.form == plan.form());
        let (view, coll, vars) = (view.clone(), coll.clone(), req.vars.clone());
        let stream = RecordStream::begin(ctx, view, coll, Arc::new(plan), req.limit, vars)?;
        runners.push(Runner::new(stream, favourite, begins || favourite, watch));
    }
    // The one that is the best for all that is known begins.
    runners.sort_by_key(|r| !r.favourite);
    let wanted = req.limit.map_or(BATCH, |l| l.clamp(1, BATCH));
    let before = ctx.examined;
    let is_favourite = runners.first().is_some_and(|r| r.favourite);
    let pace = Pace {
        turn: match watched {
            Some(_) if req.limit.is_none() => FIRST_WATCHED_TURN,
            _ => FIRST_TURN,
        },
        of_first: match watched {
            Some(_) => OF_WATCHED,
            None if is_favourite => OF_WINNER,
            None => OF_LIKELY,
        },
        alike: watched.is_some(),
    };
    let won = run(ctx, &mut runners, wanted, pace)?;
    let all = runners.iter().map(Runner::cost).sum::<u64>();
    let mut winner = runners.swap_remove(won);
    winner.stream.examined.planning = all.saturating_sub(winner.cost());
    note(ctx.engine, &coll, key, cached.is_some(), &mut winner, req);
    ctx.examined = before;
    ctx.examined.add(winner.stream.examined);
    let stream = winner.keep();
    stream.is_run(ctx);
    Ok(stream)
}

/// Others run beside a stream that has given nothing; it becomes the stream of the one that wins.
pub(super) fn join(ctx: &mut OpCtx, stream: &mut RecordStream, late: Late) -> Result<()> {
    // Nothing may be lost half-way, and it may take long.
    ctx.need_worker()?;
    let begin = |plan: Plan| {
        let (view, coll) = (stream.view.clone(), stream.coll.clone());
        RecordStream::begin(
            ctx,
            view,
            coll,
            Arc::new(plan),
            late.limit,
            stream.vars.clone(),
        )
    };
    let nothing = begin(Plan::nothing())?;
    let others = late.plans.into_iter().map(begin);
    let others = others.collect::<Result<Vec<_>>>()?;
    let first = std::mem::replace(stream, nothing);
    let (before, read, chosen) = (ctx.examined, first.examined, first.plan.clone());
    let pace = Pace {
        turn: (cost(&read) as f64 * GROWTH) as u64,
        of_first: OF_WATCHED,
        alike: false,
    };
    let all = std::iter::once(first).chain(others);
    let mut runners: Vec<Runner> = all.map(|s| Runner::new(s, false, true, None)).collect();
    let wanted = late.limit.map_or(BATCH, |l| l.clamp(1, BATCH));
    let won = match catch_up(ctx, &mut runners, wanted)? {
        Some(won) => won,
        None => run(ctx, &mut runners, wanted, pace)?,
    };
    let all = runners.iter().map(Runner::cost).sum::<u64>();
    let mut winner = runners.swap_remove(won);
    let planning = all.saturating_sub(winner.cost());
    winner.stream.examined.planning = read.planning + planning;
    winner.stream.examined.raced = 1;
    // What the first has read before is of the winner, or of choosing it.
    let of_winner = winner.stream.examined;
    ctx.examined = Examined {
        keys: before.keys.saturating_sub(read.keys) + of_winner.keys,
        docs: before.docs.saturating_sub(read.docs) + of_winner.docs,
        planning: before.planning + planning,
        raced: before.raced + 1,
        ..before
    };
    *stream = winner.keep();
    if won != 0 {
        // Of an operation with several streams the first one's plan is told.
        if ctx.plan.as_ref().is_some_and(|p| Arc::ptr_eq(p, &chosen)) {
            ctx.plan = None;
        }
        stream.is_run(ctx);
    }
    Ok(())
}

/// Lets the joined plans read their share of the first one's reads; gives the plan that has enough
/// results.
fn catch_up(ctx: &mut OpCtx, runners: &mut [Runner], wanted: u64) -> Result<Option<usize>> {
    let read = runners.first().map_or(0, Runner::cost);
    for (i, r) in runners.iter_mut().enumerate().skip(1) {
        if r.run(ctx, read / OF_WATCHED, wanted)? {
            return Ok(Some(i));
        }
    }
    Ok(None)
}

/// The examined entries and documents, in reads of one entry.
pub(super) fn cost(x: &Examined) -> u64 {
    x.keys + x.docs * FETCH
}

/// Remembers what won, and counts it; `known`: a race of the shape was won before.
fn note(
    engine: &Engine,
    coll: &Collection,
    key: PlanKey,
    known: bool,
    winner: &mut Runner,
    req: &ReadRequest,
) {
    winner.stream.examined.raced = 1;
    if known && !winner.favourite {
        winner.stream.examined.replanned = 1;
        engine
            .replanned
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    if !winner.favourite {
        let form = winner.stream.plan.form();
        coll.plan_cache.put(
            key,
            req.cache_entry(form, winner.cost(), &winner.stream.plan),
        );
    }
}

/// Lets each run in its turn until one has enough results; gives that one.
fn run(ctx: &mut OpCtx, runners: &mut [Runner], wanted: u64, pace: Pace) -> Result<usize> {
    let mut turn = pace.turn;
    loop {
        let has_disappointed = runners.first().is_some_and(Runner::has_disappointed);
        let is_stuck = runners.first().is_some_and(|r| r.failed.is_some());
        let others = if is_stuck || has_disappointed && pace.alike {
            turn
        } else {
            turn / pace.of_first
        };
        let mut alive = 0;
        for (i, r) in runners.iter_mut().enumerate() {
            let until = if i == 0 { turn } else { others };
            let runs = r.failed.is_none() && (r.begins || has_disappointed);
            if runs && r.run(ctx, until, wanted)? {
                return Ok(i);
            }
            alive += usize::from(r.failed.is_none());
        }
        if alive == 0 {
            let first = runners.iter_mut().find_map(|r| r.failed.take());
            return first.map_or(Ok(0), Err);
        }
        turn = (turn as f64 * GROWTH) as u64;
    }
}

impl Runner {
    fn new(stream: RecordStream, favourite: bool, begins: bool, watch: Option<u64>) -> Runner {
        Runner {
            stream,
            rows: VecDeque::new(),
            bytes: 0,
            favourite,
            begins,
            watch,
            ended: false,
            failed: None,
        }
    }

    fn tried(self) -> Trial {
        Trial {
            returned: self.rows.len() as u64,
            examined: self.stream.examined,
            sort_bytes: self.stream.sort_bytes,
            sort_rows: self.stream.sort_rows,
            ended: self.ended,
            failed: self.failed.map(Stop::into_error),
        }
    }

    fn cost(&self) -> u64 {
        cost(&self.stream.examined)
    }

    /// Whether it has read more than was thought, or cannot go on: others have to.
    fn has_disappointed(&self) -> bool {
        self.failed.is_some() || self.watch.is_some_and(|most| self.cost() > most)
    }

    /// Runs until `until` was read in all; whether it has enough results, or all.
    fn run(&mut self, ctx: &mut OpCtx, until: u64, wanted: u64) -> Result<bool> {
        while self.cost() < until {
            ctx.begin_turn((until - self.cost()).div_ceil(1 + FETCH));
            let more = self.stream.next(ctx);
            if ctx.end_turn() && more.as_ref().is_err_and(Stop::is_suspension) {
                continue;
            }
            match more {
                Ok(true) => {
                    let (key, doc) = (self.stream.record_key(), self.stream.doc());
                    self.bytes += doc.len();
                    self.rows.push_back((key.to_vec(), doc.as_bytes().to_vec()));
                    if self.rows.len() as u64 >= wanted || self.bytes >= BATCH_BYTES {
                        return Ok(true);
                    }
                }
                Ok(false) => {
                    self.ended = true;
                    return Ok(true);
                }
                Err(e) if e.is_suspension() || e.is_interruption() => return Err(e),
                Err(e) => {
                    self.failed = Some(e);
                    return Ok(false);
                }
            }
        }
        Ok(false)
    }

    /// The stream, which gives the rows that are there first.
    fn keep(self) -> RecordStream {
        let mut stream = self.stream;
        let then = Box::new(std::mem::replace(&mut stream.order, Order::There));
        stream.order = Order::Kept(Kept {
            rows: self.rows,
            then,
        });
        stream.current = Current::None;
        stream
    }
}
