//! A YCSB workload on one target: its records brought in, its phases driven, each measured step checked by counts.

use super::client::{Shared, YcsbClient, YcsbPhase};
use super::spec::Spec;
use crate::connection::NULL_SERVER;
use crate::fault::{Fault, Result};
use crate::fleet::{Fleet, RunOutcome, interrupted};
use crate::floor::{Floor, FloorLoad};
use crate::measure::Sample;
use crate::process;
use crate::progress::{Goal, Progress, say};
use crate::report::{MeasuredStep, TargetInfo};
use crate::targets::mark::{self, Owner};
use crate::targets::{Activity, Table, TargetDatabase};
use crate::terms::WriteDurability;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub struct Session {
    pub target: Arc<dyn TargetDatabase>,
    pub info: TargetInfo,
    pub name: String,
    pub spec: Spec,
    pub durability: WriteDurability,
    /// Documents of an insert message while loading is not measured.
    pub load_batch: u64,
    /// Threads of the load client; 0 for one a core.
    pub client_threads: usize,
    pub seed: u64,
    pub quiet: bool,
    /// Whether each operation is kept by itself.
    pub singles: bool,
    /// The share of the records that this process has, of so many that load the target together.
    pub part: Option<(u64, u64)>,
    db: String,
    table: Table,
    /// What the server was busy with in the last phase.
    activity: BTreeMap<String, Vec<f64>>,
    /// CPU time of the server's processes in the last phase.
    spent: Option<Duration>,
}

/// One measured step.
#[derive(Clone, Copy, Debug)]
pub struct StepPlan {
    pub connections: usize,
    pub operations: u64,
    pub limit: Option<Duration>,
    pub warmup: Duration,
    /// Operations a second of an open loop; none for a closed one.
    pub rate: Option<f64>,
    /// The rate that an open loop comes to, evenly over its limit.
    pub ramp: Option<f64>,
    pub poisson: bool,
}

impl StepPlan {
    pub fn timed(connections: usize, limit: Duration) -> StepPlan {
        StepPlan {
            connections,
            operations: u64::MAX,
            limit: Some(limit),
            warmup: Duration::ZERO,
            rate: None,
            ramp: None,
            poisson: false,
        }
    }
}

/// Connections of a load that is not measured; of servers side by side each has one.
const LOADERS: usize = 4;
/// A run that got less than this share of the offered rate was overloaded.
const KEPT_UP: f64 = 0.97;

impl Session {
    pub fn open(
        target: Arc<dyn TargetDatabase>,
        name: &str,
        spec: Spec,
        durability: WriteDurability,
    ) -> Result<Session> {
        target.ready(durability)?;
        let info = target.info()?;
        let db = target.database().unwrap_or_else(|| "ycsb".into());
        Ok(Session {
            table: super::client::table_of(&spec, &db),
            info,
            target,
            name: name.to_string(),
            spec,
            durability,
            load_batch: 1000,
            client_threads: 0,
            seed: 1,
            quiet: false,
            singles: false,
            part: None,
            db,
            activity: BTreeMap::new(),
            spent: None,
        })
    }

    /// Takes another workload over the same or another table.
    pub fn set_spec(&mut self, name: &str, spec: Spec) {
        self.table = super::client::table_of(&spec, &self.db);
        self.name = name.to_string();
        self.spec = spec;
    }

    fn threads(&self, connections: usize) -> usize {
        let threads = match self.client_threads {
            0 => process::allowed_cores().len(),
            n => n,
        };
        threads.clamp(1, connections)
    }

    /// Lanes of a fleet: for servers side by side at least one for each.
    fn lanes(&self, connections: usize) -> usize {
        let of = self.target.parts().len().max(1);
        self.threads((connections / of).max(1)).div_ceil(of) * of
    }

    pub fn empty(&self) -> Result<()> {
        self.target.create(&self.table)
    }

    /// Refuses a table that others made.
    pub fn claim(&self) -> Result<()> {
        let table = format!("{}.{}", self.db, self.table.name);
        mark::claim(self.target.owner(&self.table)?, &self.info.url, &table)
    }

    pub fn drop_table(&self) -> Result<()> {
        self.target.drop_table(&self.table)
    }

    pub fn table(&self) -> &Table {
        &self.table
    }

    pub fn count(&self) -> Result<u64> {
        self.target.count(&self.table)
    }

    /// Brings the table to the state that the run phase starts from. `false` when Ctrl-C came first:
    /// earlier measurements are kept, and there is nothing to run on.
    pub fn prepare(&mut self, reload: bool) -> Result<bool> {
        if self.spec.only_inserts() {
            self.empty()?;
            return Ok(true);
        }
        // Inserts and deletes may leave the right count of other records.
        let mixes = self.spec.insert > 0.0 && self.spec.delete > 0.0;
        // Records of others are neither written to nor taken for a workload's.
        self.claim()?;
        if !reload && !mixes && self.count()? == self.spec.records {
            return Ok(true);
        }
        say(
            self.quiet,
            format_args!(
                "{}: loading {} records",
                self.info.label(),
                self.spec.insert_count
            ),
        );
        self.empty()?;
        let mut spec = self.spec.clone();
        spec.batch = self.load_batch;
        let loaders = LOADERS.max(self.target.parts().len());
        let plan = StepPlan {
            operations: u64::MAX,
            limit: None,
            ..StepPlan::timed(loaders, Duration::ZERO)
        };
        let (outcome, _) = self.drive(YcsbPhase::Load, spec, plan, &mut |_| {})?;
        if interrupted() {
            return Ok(false);
        }
        self.expect_count(outcome.operations)?;
        Ok(true)
    }

    pub fn expect_count(&self, want: u64) -> Result<()> {
        let have = self.count()?;
        if have == want {
            return Ok(());
        }
        Err(Fault::Check(format!(
            "{have} records in {} of {} where {want} were due",
            self.table.name, self.db
        )))
    }

    /// The load phase as YCSB does it, measured.
    pub fn load(
        &mut self,
        plan: StepPlan,
        observe: &mut dyn FnMut(&Sample),
    ) -> Result<(RunOutcome, MeasuredStep)> {
        self.empty()?;
        self.load_into(plan, observe)
    }

    /// The same into the empty table that is there.
    pub fn load_into(
        &mut self,
        plan: StepPlan,
        observe: &mut dyn FnMut(&Sample),
    ) -> Result<(RunOutcome, MeasuredStep)> {
        let (outcome, cpu) = self.drive(YcsbPhase::Load, self.spec.clone(), plan, observe)?;
        self.expect_count(outcome.operations)?;
        let step = self.step("load", plan, &outcome, cpu)?;
        Ok((outcome, step))
    }

    /// The run phase, measured; the table has been prepared.
    pub fn run(
        &mut self,
        plan: StepPlan,
        observe: &mut dyn FnMut(&Sample),
    ) -> Result<(RunOutcome, MeasuredStep)> {
        let only_inserts = self.spec.only_inserts();
        let mut spec = self.spec.clone();
        // A zipfian makes room for the inserts to come; a run bounded by time counts on one pass over the records.
        spec.operations = if plan.operations == u64::MAX {
            spec.records
        } else {
            plan.operations
        };
        if !plan.warmup.is_zero() && !only_inserts && spec.insert == 0.0 {
            let warm = StepPlan::timed(plan.connections, plan.warmup);
            self.drive(YcsbPhase::Run, spec.clone(), warm, &mut |_| {})?;
        }
        let before = if only_inserts { 0 } else { self.count()? };
        let (outcome, cpu) = self.drive(YcsbPhase::Run, spec, plan, observe)?;
        if self.spec.delete == 0.0 {
            let inserted = if only_inserts {
                outcome.operations
            } else {
                let insert = outcome.kinds.iter().find(|(k, _)| *k == "INSERT");
                insert.map_or(0, |(_, h)| h.len()) * self.spec.batch
            };
            // A last batch may be smaller than the others, so only single inserts are counted to the document.
            if self.spec.batch == 1 || only_inserts {
                self.expect_count(before + inserted)?;
            }
        }
        let name = self.name.clone();
        let step = self.step(&name, plan, &outcome, cpu)?;
        Ok((outcome, step))
    }

    /// This process's share of a phase that several do together; its records are counted by the one that has them do it.
    pub fn share(&mut self, load: bool, plan: StepPlan) -> Result<MeasuredStep> {
        let mut spec = self.spec.clone();
        let phase = if load {
            YcsbPhase::Load
        } else {
            YcsbPhase::Run
        };
        if !load {
            spec.operations = if plan.operations == u64::MAX {
                spec.records
            } else {
                plan.operations
            };
        }
        if !load && !plan.warmup.is_zero() && spec.insert == 0.0 {
            let warm = StepPlan::timed(plan.connections, plan.warmup);
            self.drive(YcsbPhase::Run, spec.clone(), warm, &mut |_| {})?;
        }
        let (outcome, cpu) = self.drive(phase, spec, plan, &mut |_| {})?;
        let name = if load {
            "load".to_string()
        } else {
            self.name.clone()
        };
        self.step(&name, plan, &outcome, cpu)
    }

    /// YCSB's load phase: into the table that is there, or a new one.
    pub fn add(&mut self, plan: StepPlan, observe: &mut dyn FnMut(&Sample)) -> Result<RunOutcome> {
        // As YCSB's users know it, a load does not empty a table; keys that are there make it fail.
        self.claim()?;
        if self.target.owner(&self.table)? == Owner::Nobody {
            self.empty()?;
        }
        let before = self.count()?;
        let (outcome, _) = self.drive(YcsbPhase::Load, self.spec.clone(), plan, observe)?;
        self.expect_count(before + outcome.operations)?;
        Ok(outcome)
    }

    /// YCSB's run phase, on the table that is there.
    pub fn go(&mut self, plan: StepPlan, observe: &mut dyn FnMut(&Sample)) -> Result<RunOutcome> {
        if self.spec.writes() {
            self.claim()?;
        }
        let spec = self.spec.clone();
        Ok(self.drive(YcsbPhase::Run, spec, plan, observe)?.0)
    }

    /// What the last phase gave, as results have it.
    pub fn measured(
        &self,
        load: bool,
        plan: StepPlan,
        outcome: &RunOutcome,
    ) -> Result<MeasuredStep> {
        let name = if load { "load" } else { &self.name };
        self.step(name, plan, outcome, self.spent)
    }

    fn step(
        &self,
        name: &str,
        plan: StepPlan,
        outcome: &RunOutcome,
        cpu: Option<Duration>,
    ) -> Result<MeasuredStep> {
        let threads = self.lanes(plan.connections);
        let mut step = MeasuredStep::new(name, plan.connections, threads, outcome, cpu);
        step.target = Some(self.info.label());
        step.durability = Some(self.durability.name().into());
        step.activity.clone_from(&self.activity);
        let record = self.spec.field_count as u64 * self.spec.field_length;
        step.record_bytes = Some(record as f64);
        step.batch = Some(self.spec.batch).filter(|n| *n > 1);
        if name == "load" {
            step.planned = plan.limit.map(|_| self.spec.insert_count);
        }
        // Of a ramp the mean.
        step.offered = plan
            .rate
            .map(|r| plan.ramp.map_or(r, |end| f64::midpoint(r, end)));
        step.point_reads = name != "load" && self.spec.proportions()[1..] == [0.0; 5];
        // An open loop spends its time waiting awake.
        if plan.rate.is_none() && self.part.is_none() {
            step.set_floor(self.floor(name, plan.connections));
        }
        step.overloaded = step.offered.is_some_and(|r| outcome.rate() < r * KEPT_UP);
        let mut sizes = self
            .target
            .sizes(&self.table, outcome.elapsed.as_secs_f64())?;
        sizes.server_resident_bytes = self.info.memory_bytes();
        sizes.server_disk_bytes = self.info.disk_bytes();
        step.sizes.push(sizes);
        Ok(step)
    }

    pub fn shared(&self, phase: YcsbPhase, spec: Spec, operations: u64) -> Arc<Shared> {
        let mut shared = Shared::new(
            spec,
            &self.db,
            self.durability,
            phase,
            operations,
            self.seed,
        );
        if self.info.product == NULL_SERVER
            && let Some(s) = Arc::get_mut(&mut shared)
        {
            s.verify = false;
        }
        shared
    }

    /// What a null server spends on an operation of such a load.
    fn floor(&self, name: &str, connections: usize) -> Option<Floor> {
        let mut spec = self.spec.clone();
        if name == "load" {
            spec.insert = 1.0;
            spec.read = 0.0;
            spec.update = 0.0;
            spec.scan = 0.0;
            spec.read_modify_write = 0.0;
            spec.delete = 0.0;
        }
        // It acknowledges one record at a time.
        if spec.batch != 1 {
            return None;
        }
        let mut shared = Shared::new(
            spec.clone(),
            &self.db,
            self.durability,
            YcsbPhase::Run,
            u64::MAX,
            self.seed,
        );
        if let Some(s) = Arc::get_mut(&mut shared) {
            s.verify = false;
        }
        let kind = FloorLoad {
            name: format!(
                "{:?} of {} x {}, all fields {} {}",
                spec.proportions(),
                spec.field_count,
                spec.field_length,
                spec.read_all_fields,
                spec.write_all_fields
            ),
            table: &shared.table,
            durability: self.durability,
            connections,
            threads: self.threads(connections),
        };
        kind.floor(|dialect, i, n| YcsbClient::new(&shared, dialect, i, n))
    }

    /// Connections with a client on each lane, for servers side by side a share of them to each.
    fn fleet_of(
        &self,
        spec: Spec,
        phase: YcsbPhase,
        plan: StepPlan,
    ) -> Result<(Fleet<YcsbClient>, Spec)> {
        let parts = self.target.parts();
        if parts.is_empty() {
            let shared = match self.part {
                Some((index, of)) => {
                    let (db, d, n) = (&self.db, self.durability, plan.operations);
                    let mut all = Shared::parts(spec.clone(), db, d, phase, n, self.seed, of);
                    all.swap_remove(index as usize)
                }
                None => self.shared(phase, spec.clone(), plan.operations),
            };
            return Ok((self.fleet(&shared, plan.connections)?, spec));
        }
        let refuse = |why: String| Err(Fault::Usage(why));
        let of = parts.len();
        if spec.scan > 0.0 {
            return refuse(format!(
                "{}: no scans over servers side by side, nobody merges them",
                self.name
            ));
        }
        if plan.connections < of || spec.insert_count < 100 * of as u64 {
            return refuse(format!(
                "{of} servers side by side take at least {of} connections and {} records",
                100 * of
            ));
        }
        // A batch would hold records of several servers.
        let spec = Spec { batch: 1, ..spec };
        let shared = Shared::parts(
            spec.clone(),
            &self.db,
            self.durability,
            phase,
            plan.operations,
            self.seed,
            of as u64,
        );
        let mut all = Fleet { lanes: Vec::new() };
        for (i, (part, shared)) in parts.iter().zip(&shared).enumerate() {
            let share = plan.connections / of + usize::from(i < plan.connections % of);
            let control = part.dialect(&shared.table, self.durability)?;
            let threads = self.lanes(plan.connections) / of;
            let one = Fleet::through(&*control, share, threads, |i, n| {
                let dialect = part.dialect(&shared.table, self.durability)?;
                Ok(YcsbClient::new(shared, dialect, i, n))
            })?;
            all.lanes.extend(one.lanes);
        }
        Ok((all, spec))
    }

    /// Connections with a client on each lane.
    pub fn fleet(&self, shared: &Arc<Shared>, connections: usize) -> Result<Fleet<YcsbClient>> {
        let control = self.target.dialect(&shared.table, self.durability)?;
        Fleet::through(&*control, connections, self.threads(connections), |i, n| {
            let dialect = self.target.dialect(&shared.table, self.durability)?;
            Ok(YcsbClient::new(shared, dialect, i, n))
        })
    }

    fn drive(
        &mut self,
        phase: YcsbPhase,
        spec: Spec,
        plan: StepPlan,
        observe: &mut dyn FnMut(&Sample),
    ) -> Result<(RunOutcome, Option<Duration>)> {
        let title = match phase {
            YcsbPhase::Load => format!("{}, {}: load", self.info.label(), self.name),
            YcsbPhase::Run => format!(
                "{}, {}: {} connection(s)",
                self.info.label(),
                self.name,
                plan.connections
            ),
        };
        let goal = match (plan.limit, phase) {
            (Some(t), _) => Goal::Time(t),
            (None, YcsbPhase::Load) => Goal::Operations(spec.insert_count),
            (None, YcsbPhase::Run) => Goal::Operations(plan.operations),
        };
        let (mut fleet, spec) = self.fleet_of(spec, phase, plan)?;
        fleet.set_ramp(plan.rate, plan.ramp.zip(plan.limit), plan.poisson);
        fleet
            .lanes
            .iter_mut()
            .for_each(|l| l.singles = self.singles);
        let progress = Progress::new(title, goal, self.info.pids(), self.quiet);
        let writes = phase == YcsbPhase::Load || spec.update + spec.insert > 0.0;
        let mut activity = Activity::default();
        let target = &*self.target;
        let done = fleet.watched(plan.limit, progress, &mut |s| {
            observe(s);
            if writes {
                activity.look(target, s.at);
            }
        });
        let done = done.map_err(|f| f.at(&self.info.url))?;
        self.activity = activity.0;
        self.spent = done.1;
        Ok(done)
    }
}
