//! The memory that operations take beside stages, cursors and transactions: what a command is parsed into, plans, keys of a
//! document, values of expressions. What a thread has allocated while it runs an operation counts for that operation, but
//! for what stages hold of their own budget.
//!
//! Each may hold [`FREE`] bytes, uncounted. What holds more counts, and waits where all that count hold
//! [`LIMIT`]: but for the one that has counted for the longest, which may go on to the limit of one
//! operation, and ends one day. One that has waited for [`LONGEST_WAIT`] is refused, and one more than [`MOST_WAITING`] at once.
//! One that has latched records does not wait, and is refused where all hold [`MOST_OF_ALL`].
//!
//! Messages, stages and cursors have budgets of their own, and the allocator keeps free memory. One operation goes past [`OWN`]
//! only while the process holds no more than it promises, or others little. It waits for
//! [`WAIT_FOR_OTHERS`] at most, since others may be waiting for it. Stages of pipelines ask the same, and may bring the process
//! to [`FOR_STAGES`] more.
//!
//! Invariants: of operations that wait for each other one goes on; an operation that has ended holds
//! nothing.

use alloc_meter::HeldMemory;
use bson::{Doc, Elem};
use errors::{Result, Stop, Suspension, err};
use parking_lot::Mutex;
use query::expr::MAX_INTERMEDIATE_BYTES;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use storage::{CacheLoan, Store};

/// So much does not count.
const FREE: usize = 1 << 20;
const LIMIT: usize = 64 << 20;
/// The most that one operation may take.
const MOST_OF_ONE: usize = 384 << 20;
/// The same once it has latched records: with what it writes.
const MOST_OF_WRITE: usize = 512 << 20;
const MOST_OF_ALL: usize = 320 << 20;
/// A process that holds much even when no operation counts, of a large catalog, may come to so much more.
const BESIDE_IDLE: usize = 256 << 20;
/// How long none has counted when the process is looked at as idle: free memory goes back with a delay.
const QUIET: Duration = Duration::from_millis(300);
/// While other operations, messages, stages and cursors hold no more, one operation or stage goes on whatever the process holds.
const LITTLE: usize = 128 << 20;
/// Stages, which ask the process in their turn, find so much that large operations have left.
const FOR_STAGES: usize = 64 << 20;
/// What an operation holds past this the cache lends, as far as it does.
const OWN: usize = 32 << 20;
/// The process is looked at again, which reads a file, when the operation has grown by so much or [`PAUSE`] has passed.
const BETWEEN_LOOKS: usize = 1 << 20;
const LEAST_LENT: usize = 4 << 20;
/// An operation that has held so much gives free memory back when it ends; less is used again by the next.
const GIVEN_BACK: usize = 8 << 20;
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const WAIT_FOR_OTHERS: Duration = Duration::from_secs(5);
/// So many wait at most: each has a thread.
const MOST_WAITING: usize = 64;
const PAUSE: Duration = Duration::from_millis(10);

/// What a command is parsed into: itself, the values of its parsed form, and what becomes of each field: nodes of a filter, of
/// an expression, of a plan. A filter of 512,000 fields takes 25 times its length, a list of values for `$in` 3 times.
const HELD_OF_COMMAND: usize = 3;
const HELD_OF_FIELD: usize = 256;

/// Such memory of a server.
#[derive(Default)]
pub struct OperationMemory {
    counted: Mutex<Counted>,
    beside: OnceLock<Beside>,
    /// Whose cache lends what a large operation holds past [`OWN`].
    lender: OnceLock<Weak<Store>>,
}

/// What else holds memory.
struct Beside {
    /// Messages, stages and cursors, in bytes.
    held: Box<dyn Fn() -> usize + Send + Sync>,
    process: fn() -> Option<HeldMemory>,
}

#[derive(Default)]
struct Counted {
    /// What those hold that count. The lowest number has counted for the longest.
    held: BTreeMap<u64, usize>,
    next: u64,
    /// What the process held when none had counted for [`QUIET`], without messages, stages and cursors, in bytes.
    idle: usize,
    /// When one last counted.
    counted_at: Option<Instant>,
    waiting: usize,
    waits: u64,
    refused: u64,
}

/// `serverStatus().pandodb.operationMemory`.
pub struct OperationMemoryFigures {
    pub limit: usize,
    pub bytes: usize,
    /// Operations that wait at this moment.
    pub waiting: usize,
    /// How often an operation has waited, and how many were refused.
    pub waits: u64,
    pub refused: u64,
}

/// The operation of this thread.
struct Running {
    of: Arc<OperationMemory>,
    /// What the thread held before.
    before: isize,
    number: Option<u64>,
    /// The most that it was seen to hold.
    most: usize,
    latched: bool,
    /// What it is going to take ([`reserve`]).
    reserved: usize,
    loan: Option<CacheLoan>,
    /// With how many bytes, and when, the process had room.
    had_room: Option<(usize, Instant)>,
}

thread_local! {
    static RUNNING: RefCell<Option<Running>> = const { RefCell::new(None) };
}

/// What this thread has allocated, without what stages hold of their own budget.
fn taken() -> isize {
    alloc_meter::held() - query::pipeline::held_by_stages()
}

impl OperationMemory {
    /// Runs `work`, an operation of this thread, or a part of one that runs already.
    pub fn within<T>(self: &Arc<OperationMemory>, work: impl FnOnce() -> T) -> T {
        struct End;
        impl Drop for End {
            fn drop(&mut self) {
                let ended = RUNNING.with_borrow_mut(Option::take);
                let Some(ended) = ended else {
                    return;
                };
                // First, so that who waits finds it.
                if ended.most >= GIVEN_BACK {
                    alloc_meter::give_back();
                }
                if let Some(n) = ended.number {
                    ended.of.counted.lock().held.remove(&n);
                }
            }
        }
        if RUNNING.with_borrow(Option::is_some) {
            return work();
        }
        RUNNING.set(Some(Running {
            of: Arc::clone(self),
            before: taken(),
            number: None,
            most: 0,
            latched: false,
            reserved: 0,
            loan: None,
            had_room: None,
        }));
        let _end = End;
        work()
    }

    /// Has the cache of this store lend.
    pub(crate) fn borrow_from(&self, store: &Arc<Store>) {
        let _ = self.lender.set(Arc::downgrade(store));
    }

    /// Has `beside` tell what messages, stages and cursors hold, in bytes.
    pub fn counts_with(&self, beside: impl Fn() -> usize + Send + Sync + 'static) {
        self.counts_with_process(beside, alloc_meter::process);
    }

    fn counts_with_process(
        &self,
        beside: impl Fn() -> usize + Send + Sync + 'static,
        process: fn() -> Option<HeldMemory>,
    ) {
        let _ = self.beside.set(Beside {
            held: Box::new(beside),
            process,
        });
    }

    /// Before one counts: what the process holds without any.
    fn note_idle(&self) {
        if let Some(beside) = self.beside.get()
            && self.counted.lock().is_quiet()
        {
            self.look(beside);
        }
    }

    /// What the process holds now; noted where none has counted for a while.
    fn look(&self, beside: &Beside) -> Option<HeldMemory> {
        let process = (beside.process)()?;
        let mut counted = self.counted.lock();
        if counted.is_quiet() {
            counted.idle = process.held.saturating_sub((beside.held)());
        }
        Some(process)
    }

    /// Whether the operation that counts for `own` bytes may hold more than [`OWN`]. It has not allocated `more` of them yet.
    fn has_room(&self, own: usize, more: usize) -> bool {
        let Some(beside) = self.beside.get() else {
            return true;
        };
        let others = || self.counted.lock().held.values().sum::<usize>() - own;
        let process = (beside.process)();
        // What it builds may be copied to a larger place at its next step.
        is_possible(process, more.max(own.min(MAX_INTERMEDIATE_BYTES)))
            && (self.has_room_past(0, process, more) || others() + (beside.held)() <= LITTLE)
    }

    /// Whether stages may hold so many bytes more.
    pub fn has_room_for_stages(&self, more: usize) -> bool {
        let Some(beside) = self.beside.get() else {
            return true;
        };
        let operations = || self.counted.lock().held.values().sum::<usize>();
        let process = self.look(beside);
        is_possible(process, more)
            && (self.has_room_past(FOR_STAGES, process, more)
                || operations() + (beside.held)() + more <= LITTLE)
    }

    /// Whether the process may hold `more` bytes more, `past` what large operations may bring it to.
    fn has_room_past(&self, past: usize, process: Option<HeldMemory>, more: usize) -> bool {
        let idle = self.counted.lock().idle;
        process.is_none_or(|process| {
            let most = process.most.max(idle.saturating_add(BESIDE_IDLE));
            process.held.saturating_add(more) <= most.saturating_add(past)
        })
    }

    pub fn figures(&self) -> OperationMemoryFigures {
        let counted = self.counted.lock();
        OperationMemoryFigures {
            limit: limit(),
            bytes: counted.held.values().sum(),
            waiting: counted.waiting,
            waits: counted.waits,
            refused: counted.refused,
        }
    }

    fn wait(&self) -> Option<Waiting<'_>> {
        let mut counted = self.counted.lock();
        if counted.waiting >= MOST_WAITING {
            return None;
        }
        counted.waits += 1;
        counted.waiting += 1;
        Some(Waiting(self))
    }

    fn refusal(&self) -> Stop {
        self.counted.lock().refused += 1;
        err!(
            ExceededMemoryLimit,
            "Other operations hold what memory there is for long commands and large values. Try again later"
        )
        .into()
    }
}

/// What all hold together, but for the first: less where there is little memory.
fn limit() -> usize {
    LIMIT.min(alloc_meter::available() / 16)
}

/// Whether there is memory for `more` bytes more.
fn is_possible(process: Option<HeldMemory>, more: usize) -> bool {
    process.is_none_or(|process| process.held.saturating_add(more) <= process.limit)
}

/// One that waits.
struct Waiting<'m>(&'m OperationMemory);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.counted.lock().waiting -= 1;
    }
}

impl Counted {
    /// None counts or waits, and none has for [`QUIET`].
    fn is_quiet(&self) -> bool {
        self.held.is_empty()
            && self.waiting == 0
            && self.counted_at.is_none_or(|at| at.elapsed() > QUIET)
    }

    /// Has `number` hold `bytes` in all, if it may. `most`: what all may hold then, but for the first.
    fn hold(&mut self, number: &mut Option<u64>, bytes: usize, most: usize) -> bool {
        if bytes <= FREE {
            if let Some(n) = number.take() {
                self.held.remove(&n);
            }
            return true;
        }
        let own = number.map_or(0, |n| self.held[&n]);
        let others = self.held.values().sum::<usize>() - own;
        let first = self.held.keys().next().copied();
        if bytes > own && others + bytes > most && first.is_some_and(|f| Some(f) != *number) {
            return false;
        }
        let next = &mut self.next;
        let n = *number.get_or_insert_with(|| {
            *next += 1;
            *next
        });
        self.held.insert(n, bytes);
        self.counted_at = Some(Instant::now());
        true
    }
}

/// It has to wait for others.
struct Full {
    of: Arc<OperationMemory>,
    /// It has latched records, and cannot.
    latched: bool,
    /// How long it waits at most.
    wait: Duration,
}

/// What came of weighing.
enum Weighed {
    Fits,
    /// More than that.
    TooLarge(usize),
    Full(Full),
}

impl Running {
    /// What a large operation holds, the cache has less: the whole is no more for it. Where the cache lends no more, it is.
    fn borrow(&mut self, held: usize) {
        if held <= OWN {
            return;
        }
        if self.loan.is_none() {
            let store = self.of.lender.get().and_then(Weak::upgrade);
            self.loan = store.map(|store| store.cache_loan());
        }
        if let Some(loan) = &mut self.loan {
            let mut wanted = held - OWN;
            while wanted >= LEAST_LENT && !loan.fits(wanted) {
                wanted /= 2;
            }
        }
    }

    fn held(&self) -> usize {
        usize::try_from(taken() - self.before).unwrap_or(0)
    }

    fn weigh(&mut self, more: usize) -> Weighed {
        let held = self.held();
        self.most = self.most.max(held);
        let bytes = held + self.reserved + more;
        // What is reserved is an estimate, and is shared out only. A latched write has its entry too.
        let most = if self.latched {
            MOST_OF_WRITE
        } else {
            MOST_OF_ONE
        };
        if held + more > most {
            return Weighed::TooLarge(most);
        }
        if bytes <= FREE && self.number.is_none() {
            return Weighed::Fits;
        }
        let most = if self.latched { MOST_OF_ALL } else { limit() };
        self.of.note_idle();
        let fits = self.of.counted.lock().hold(&mut self.number, bytes, most);
        if !fits {
            return Weighed::Full(self.full(LONGEST_WAIT));
        }
        self.borrow(held);
        if bytes > OWN && !self.latched && !self.has_room(bytes, bytes - held) {
            return Weighed::Full(self.full(WAIT_FOR_OTHERS));
        }
        Weighed::Fits
    }

    fn has_room(&mut self, bytes: usize, more: usize) -> bool {
        let had_room = self.had_room.is_some_and(|(with, at)| {
            bytes <= with.saturating_add(BETWEEN_LOOKS) && at.elapsed() < PAUSE
        });
        if had_room {
            return true;
        }
        let has_room = self.of.has_room(bytes, more);
        self.had_room = has_room.then(|| (bytes, Instant::now()));
        has_room
    }

    fn full(&self, wait: Duration) -> Full {
        Full {
            of: self.of.clone(),
            latched: self.latched,
            wait,
        }
    }
}

fn weigh_once(more: usize) -> Result<Option<Full>> {
    let weigh = |r: &mut Running| r.weigh(more);
    let weighed = RUNNING.with_borrow_mut(|r| r.as_mut().map_or(Weighed::Fits, weigh));
    match weighed {
        Weighed::Fits => Ok(None),
        Weighed::Full(full) => Ok(Some(full)),
        Weighed::TooLarge(most) => Err(err!(
            ExceededMemoryLimit,
            "The operation takes more than {most} bytes of memory for what it is parsed into and the values that it makes"
        )
        .into()),
    }
}

/// Counts what the operation of this thread holds, and `more` bytes that it is about to, and waits until it may; `check` tells whether
/// it is to end. On an event loop (`may_wait` is false) it is suspended.
pub fn weigh(more: usize, may_wait: bool, check: &dyn Fn() -> Result<()>) -> Result<()> {
    let Some(full) = weigh_once(more)? else {
        return Ok(());
    };
    let all = full.of;
    if !may_wait {
        return Err(Suspension::Worker.into());
    }
    if full.latched {
        return Err(all.refusal());
    }
    let Some(_waiting) = all.wait() else {
        return Err(all.refusal());
    };
    alloc_meter::give_back();
    let since = Instant::now();
    while let Some(full) = weigh_once(more)? {
        check()?;
        if since.elapsed() >= full.wait {
            return Err(all.refusal());
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// What the operation of this thread holds, in bytes.
pub(crate) fn held() -> usize {
    RUNNING.with_borrow(|r| r.as_ref().map_or(0, Running::held))
}

/// As [`weigh`], on a worker: so many bytes are going to be taken where nothing can wait, and count until the operation ends or
/// reserves others.
pub(crate) fn reserve(bytes: usize, check: &dyn Fn() -> Result<()>) -> Result<()> {
    RUNNING.with_borrow_mut(|r| {
        if let Some(r) = r {
            r.reserved = bytes;
        }
    });
    weigh(0, true, check)
}

/// The operation of this thread has latched records, or has let them go.
pub(crate) fn latched(holds: bool) {
    RUNNING.with_borrow_mut(|r| {
        if let Some(r) = r {
            r.latched = holds;
        }
    });
}

/// What a command takes with its parsed form, in bytes.
pub(crate) fn parsed_size(command: Doc<'_>) -> usize {
    HELD_OF_COMMAND * command.len() + HELD_OF_FIELD * fields(command, false)
}

/// The fields of a document and of those in it. Plain values of an array are none.
fn fields(d: Doc<'_>, is_array: bool) -> usize {
    let itself = usize::from(!is_array);
    let of = |e: Elem<'_>| match (e.val.as_doc(), e.val.as_array()) {
        (Some(inner), _) => 1 + fields(inner, false),
        (_, Some(list)) => itself + fields(list, true),
        _ => itself,
    };
    d.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use errors::Code;
    use std::cell::Cell;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    const MB: usize = 1 << 20;

    /// As if so much were allocated; the tests' own allocator does not count.
    fn allocated<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
        alloc_meter::changed(0, bytes);
        let done = work();
        alloc_meter::changed(bytes, 0);
        done
    }

    fn free() -> Result<()> {
        Ok(())
    }

    #[test]
    fn the_first_goes_on_and_others_wait_for_it() {
        let mut all = Counted::default();
        let (mut a, mut b, mut c) = (None, None, None);
        let mut hold = |of: &mut Option<u64>, mb: usize| all.hold(of, mb * MB, LIMIT);
        assert!(hold(&mut c, 1) && c.is_none(), "little is not counted");
        assert!(hold(&mut a, 30) && hold(&mut b, 30));
        assert!(!hold(&mut c, 10) && !hold(&mut b, 40));
        assert!(hold(&mut a, 200), "the first may go on");
        assert!(!hold(&mut b, 31));
        assert!(hold(&mut b, 20), "what becomes less is always told");
        assert!(hold(&mut a, 1) && a.is_none());
        assert!(hold(&mut b, 200), "now this is the first");
        assert!(!hold(&mut a, 5));
        assert!(
            all.hold(&mut a, 100 * MB, MOST_OF_ALL),
            "who has latched records"
        );
        assert!(!all.hold(&mut c, 100 * MB, MOST_OF_ALL));
        assert_eq!(all.held.values().sum::<usize>(), 300 * MB);
    }

    #[test]
    fn operations_end_and_are_nested() {
        let all: Arc<OperationMemory> = Arc::default();
        let weighed = || weigh(0, true, &free);
        allocated(50 * MB, || {
            all.within(|| {
                weighed().unwrap();
                assert_eq!(all.figures().bytes, 0, "what the thread held before");
                allocated(100 * MB, || all.within(weighed)).unwrap();
                assert_eq!(all.figures().bytes, 100 * MB);
                weighed().unwrap();
                assert_eq!(all.figures().bytes, 0);
                let much = allocated(MOST_OF_ONE + 1, weighed).unwrap_err();
                assert!(much.is(Code::ExceededMemoryLimit));
                allocated(90 * MB, weighed).unwrap();
            })
        });
        assert_eq!(all.figures().bytes, 0);
        assert!(allocated(900 * MB, weighed).is_ok(), "no operation runs");
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            all.within(|| {
                allocated(100 * MB, weighed).unwrap();
                panic!("within an operation");
            })
        }));
        assert!(panicked.is_err() && all.figures().bytes == 0);
    }

    #[test]
    fn a_large_one_goes_on_while_the_process_keeps_its_promise_or_others_hold_little() {
        thread_local!(static PROCESS_HOLDS: Cell<usize> = const { Cell::new(300 * MB) });
        let all: Arc<OperationMemory> = Arc::default();
        let beside = Arc::new(AtomicUsize::new(200 * MB));
        let told = beside.clone();
        all.counts_with_process(
            move || told.load(Relaxed),
            || {
                Some(HeldMemory {
                    held: PROCESS_HOLDS.get(),
                    most: 600 * MB,
                    limit: usize::MAX,
                })
            },
        );
        let asked = Cell::new(0);
        let others_end = || {
            asked.set(asked.get() + 1);
            PROCESS_HOLDS.set(400 * MB);
            Ok(())
        };
        let holds = |mb: usize, check: &dyn Fn() -> Result<()>| {
            allocated(mb * MB, || weigh(0, true, check))
        };
        let killed = || Err(err!(Interrupted, "killed").into());
        all.within(|| {
            holds(140, &killed).unwrap();
            PROCESS_HOLDS.set(610 * MB);
            holds(30, &killed).unwrap();
            assert_eq!(all.figures().waits, 0);
            holds(160, &others_end).unwrap();
            assert_eq!((all.figures().waits, asked.get()), (1, 1));
            std::thread::sleep(2 * PAUSE);
            let reserved = reserve(220 * MB, &killed).unwrap_err();
            assert!(reserved.is(Code::Interrupted), "it would wait");
            reserve(190 * MB, &killed).unwrap();
            PROCESS_HOLDS.set(610 * MB);
            std::thread::sleep(2 * PAUSE);
            let much = holds(40, &free).unwrap_err();
            assert!(much.is(Code::ExceededMemoryLimit), "not for ever");
            beside.store(120 * MB, Relaxed);
            holds(200, &killed).unwrap();
        });
        assert_eq!(all.figures().bytes, 0);
    }

    #[test]
    fn what_the_process_holds_anyway_leaves_room() {
        thread_local!(static PROCESS_HOLDS: Cell<usize> = const { Cell::new(700 * MB) });
        let all: Arc<OperationMemory> = Arc::default();
        let process = || {
            Some(HeldMemory {
                held: PROCESS_HOLDS.get(),
                most: 500 * MB,
                limit: usize::MAX,
            })
        };
        all.counts_with_process(|| 200 * MB, process);
        let killed = || Err(err!(Interrupted, "killed").into());
        let one = |mb: usize| all.within(|| allocated(mb * MB, || weigh(0, true, &killed)));
        one(40).unwrap();
        PROCESS_HOLDS.set(720 * MB);
        one(2).unwrap();
        assert_eq!(
            all.counted.lock().idle,
            500 * MB,
            "one has counted a moment ago"
        );
        PROCESS_HOLDS.set(750 * MB);
        one(40).unwrap();
        std::thread::sleep(2 * QUIET);
        PROCESS_HOLDS.set(300 * MB);
        one(2).unwrap();
        assert_eq!(all.counted.lock().idle, 100 * MB);
    }

    #[test]
    fn stages_find_a_little_more_than_large_operations() {
        thread_local!(static PROCESS_HOLDS: Cell<usize> = const { Cell::new(0) });
        let all: Arc<OperationMemory> = Arc::default();
        assert!(all.has_room_for_stages(900 * MB), "nothing is known");
        let beside = Arc::new(AtomicUsize::new(200 * MB));
        let told = beside.clone();
        let process = || {
            Some(HeldMemory {
                held: PROCESS_HOLDS.get(),
                most: 500 * MB,
                limit: usize::MAX,
            })
        };
        all.counts_with_process(move || told.load(Relaxed), process);
        all.within(|| {
            allocated(40 * MB, || {
                weigh(0, true, &free).unwrap();
                PROCESS_HOLDS.set(540 * MB);
                assert!(all.has_room_for_stages(24 * MB) && !all.has_room_for_stages(25 * MB));
                beside.store(80 * MB, Relaxed);
                PROCESS_HOLDS.set(900 * MB);
                assert!(all.has_room_for_stages(8 * MB) && !all.has_room_for_stages(9 * MB));
            })
        });
    }

    #[test]
    fn none_goes_past_what_there_is() {
        thread_local!(static PROCESS_HOLDS: Cell<usize> = const { Cell::new(300 * MB) });
        let all: Arc<OperationMemory> = Arc::default();
        let process = || {
            Some(HeldMemory {
                held: PROCESS_HOLDS.get(),
                most: 600 * MB,
                limit: 400 * MB,
            })
        };
        all.counts_with_process(|| 0, process);
        let killed = || Err(err!(Interrupted, "killed").into());
        let one = |mb: usize| all.within(|| allocated(mb * MB, || weigh(0, true, &killed)));
        PROCESS_HOLDS.set(272 * MB);
        one(140).unwrap();
        PROCESS_HOLDS.set(273 * MB);
        let refused = one(140).unwrap_err();
        assert!(refused.is(Code::Interrupted), "no room for its copy");
        PROCESS_HOLDS.set(300 * MB);
        one(100).unwrap();
        assert!(all.has_room_for_stages(100 * MB) && !all.has_room_for_stages(101 * MB));
        PROCESS_HOLDS.set(401 * MB);
        one(30).unwrap();
        assert!(one(40).unwrap_err().is(Code::Interrupted), "it would wait");
        assert!(!all.has_room_for_stages(MB));
    }

    #[test]
    fn what_stages_hold_counts_there() {
        let all: Arc<OperationMemory> = Arc::default();
        let stages = Arc::new(query::pipeline::StageMemory::default());
        all.within(|| {
            let mut share = stages.share();
            assert!(share.fits(50 * MB));
            allocated(60 * MB, || weigh(0, true, &free)).unwrap();
            assert_eq!(all.figures().bytes, 10 * MB);
        });
    }

    #[test]
    fn who_waits_goes_on_when_there_is_room_or_ends() {
        let all: Arc<OperationMemory> = Arc::default();
        let (begun, end) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                all.within(|| {
                    allocated(200 * MB, || weigh(0, true, &free)).unwrap();
                    begun.wait();
                    end.wait();
                })
            });
            begun.wait();
            let waits = |may_wait, check: &dyn Fn() -> Result<()>| {
                all.within(|| allocated(10 * MB, || weigh(0, may_wait, check)))
            };
            let suspended = waits(false, &free).unwrap_err();
            assert!(suspended.is_suspension(), "an event loop does not wait");
            let killed = waits(true, &|| Err(err!(Interrupted, "killed").into()));
            assert!(killed.unwrap_err().is(Code::Interrupted));
            all.within(|| {
                latched(true);
                allocated(10 * MB, || weigh(0, true, &free)).unwrap();
                let much = allocated(150 * MB, || weigh(0, true, &free)).unwrap_err();
                assert!(
                    much.is(Code::ExceededMemoryLimit),
                    "no operation waits with latches"
                );
            });
            let asked = Cell::new(0);
            waits(true, &|| {
                asked.set(asked.get() + 1);
                if asked.get() == 3 {
                    end.wait();
                }
                Ok(())
            })
            .unwrap();
            assert!(asked.get() >= 3);
        });
        let figures = all.figures();
        assert_eq!((figures.bytes, figures.waits, figures.refused), (0, 2, 1));
    }
}
