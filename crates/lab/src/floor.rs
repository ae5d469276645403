//! What a server spends on an operation that only reads the request and answers: the floor under every target, and the
//! yardstick for the load client, which must not cost more than a little above it.
//!
//! Measured once for each workload and number of connections, beside the targets' own steps, in CPU time, which stands
//! when the machine has other work. Where this program cannot start itself as a null server there is no floor.

use crate::bench::place::NullProcess;
use crate::connection::Address;
use crate::fault::Result;
use crate::fleet::{Fleet, interrupted};
use crate::lane::Workload;
use crate::null::Form;
use crate::process::{self, Placement, allowed_cores};
use crate::targets::mongodb::MongoDb;
use crate::targets::{Dialect, Table, Target};
use crate::terms::Durability;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LENGTH: Duration = Duration::from_millis(250);

static KNOWN: Mutex<BTreeMap<String, Option<f64>>> = Mutex::new(BTreeMap::new());
/// No null server comes up from this program: not tried again.
static WITHOUT: AtomicBool = AtomicBool::new(false);

/// Load of one kind.
pub struct Kind<'a> {
    /// What tells the load from others.
    pub name: String,
    pub table: &'a Arc<Table>,
    pub durability: Durability,
    pub connections: usize,
    pub threads: usize,
}

impl Kind<'_> {
    /// CPU microseconds of the null server for an operation. `make` gives the workload of a lane; it must not compare
    /// records, which are always the same here.
    pub fn floor<W: Workload>(
        &self,
        make: impl FnMut(Box<dyn Dialect>, usize, usize) -> W,
    ) -> Option<f64> {
        let key = format!(
            "{}, {:?}, {} on {}",
            self.name, self.durability, self.connections, self.threads
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
    ) -> Result<Option<f64>> {
        // Where the scheduler puts it, as it does with servers that run already.
        let anywhere = Placement {
            all: allowed_cores(),
            server: None,
            client: None,
        };
        let null = NullProcess::start(None, Form::Threads, &anywhere).inspect_err(|_| {
            WITHOUT.store(true, Ordering::Relaxed);
        })?;
        let target = MongoDb::at(Address::local(null.port));
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
        let floor = spent.map(|s| s.as_secs_f64() * 1e6 / operations);
        Ok(floor.filter(|f| *f > 0.0))
    }
}
