//! What a server spends on an operation that only reads the request and answers: the floor under every target, and the
//! yardstick for the load client, which must not cost more than a little above it.
//!
//! Measured once for each workload, number of connections and repeat, beside the targets' own steps, in CPU time, which
//! stands when the machine has other work. Its rate does not: a repeat in which the null server was slow was measured on
//! a machine that had less to give. Where this program cannot start itself as a null server there is no floor.

use crate::bench::place::NullProcess;
use crate::connection::MongoAddress;
use crate::fault::Result;
use crate::fleet::{Fleet, interrupted};
use crate::lane::Workload;
use crate::null::Form;
use crate::process::{self, CorePlacement, allowed_cores};
use crate::targets::mongodb::MongoDb;
use crate::targets::{Dialect, Table, TargetDatabase};
use crate::terms::WriteDurability;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LENGTH: Duration = Duration::from_millis(250);

/// What a null server made of a load.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    /// CPU microseconds of an operation.
    pub cpu_us: f64,
    pub per_second: f64,
}

static KNOWN: Mutex<BTreeMap<String, Option<Floor>>> = Mutex::new(BTreeMap::new());
/// Floors are measured anew in each repeat.
static REPEAT: AtomicUsize = AtomicUsize::new(0);

/// The next repeat begins.
pub fn begin(repeat: usize) {
    REPEAT.store(repeat, Ordering::Relaxed);
}

/// No null server comes up from this program: not tried again.
static WITHOUT: AtomicBool = AtomicBool::new(false);

/// Load of one kind.
pub struct FloorLoad<'a> {
    /// What tells the load from others.
    pub name: String,
    pub table: &'a Arc<Table>,
    pub durability: WriteDurability,
    pub connections: usize,
    pub threads: usize,
}

impl FloorLoad<'_> {
    /// What the null server makes of it in this repeat. `make` gives the workload of a lane; it must not compare
    /// records, which are always the same here.
    pub fn floor<W: Workload>(
        &self,
        make: impl FnMut(Box<dyn Dialect>, usize, usize) -> W,
    ) -> Option<Floor> {
        let key = format!(
            "{}, {:?}, {} on {}, repeat {}",
            self.name,
            self.durability,
            self.connections,
            self.threads,
            REPEAT.load(Ordering::Relaxed)
        );
        if let Ok(known) = KNOWN.lock()
            && let Some(floor) = known.get(&key)
        {
            return *floor;
        }
        if WITHOUT.load(Ordering::Relaxed) || interrupted() {
            return None;
        }
        // A null server that cannot answer such a load gives no floor; the target's figures stand without it.
        let floor = self.measure(make).unwrap_or_default();
        if let Ok(mut known) = KNOWN.lock() {
            known.insert(key, floor);
        }
        floor
    }

    fn measure<W: Workload>(
        &self,
        mut make: impl FnMut(Box<dyn Dialect>, usize, usize) -> W,
    ) -> Result<Option<Floor>> {
        // Where the scheduler puts it, as it does with servers that run already.
        let anywhere = CorePlacement {
            all: allowed_cores(),
            server: None,
            client: None,
        };
        let null = NullProcess::start(None, Form::Threads, &anywhere).inspect_err(|_| {
            WITHOUT.store(true, Ordering::Relaxed);
        })?;
        let target = MongoDb::at(MongoAddress::local(null.port));
        let control = target.dialect(self.table, self.durability)?;
        let mut fleet = Fleet::through(&*control, self.connections, self.threads, |i, n| {
            Ok(make(target.dialect(self.table, self.durability)?, i, n))
        })?;
        fleet.run_quietly(Some(LENGTH / 4))?;
        let before = null.pid().and_then(process::cpu_time);
        let outcome = fleet.run_quietly(Some(LENGTH))?;
        let spent = before
            .zip(null.pid().and_then(process::cpu_time))
            .map(|(b, a)| a.saturating_sub(b));
        let operations = outcome.operations.max(1) as f64;
        let floor = spent.map(|s| Floor {
            cpu_us: s.as_secs_f64() * 1e6 / operations,
            per_second: outcome.rate(),
        });
        Ok(floor.filter(|f| f.cpu_us > 0.0))
    }
}
