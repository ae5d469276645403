//! The candidates of an explained query: the plans, the estimates of each, and how much each read when
//! all ran against each other (`rejectedPlans`, `allPlansExecution`).

use super::execution_stats::{Counted, execution_stages};
use bson::{DocBuf, Writer};
use catalog::Collection;
use errors::Result;
use executor::{OpCtx, ReadRequest, RecordStream, Trial};
use planner::explain::PlanStage;
use planner::{Estimated, Plan};
use std::sync::Arc;

/// The most plans that a trial runs, as many as MongoDB's.
const MOST_TRIALS: usize = 64;

/// The plans of one query, the chosen one first; none where nothing is to be chosen.
#[derive(Default)]
pub(super) struct Candidates {
    all: Vec<Estimated>,
    /// What those at the same places did; empty without a trial.
    trials: Vec<Trial>,
}

impl Candidates {
    pub fn of(
        op: &OpCtx,
        read: &ReadRequest<'_>,
        view: &storage::View,
        coll: &Arc<Collection>,
        count: bool,
    ) -> Result<Candidates> {
        let choice = read.choose(op.engine, view, coll, count)?;
        let mut all = choice.others;
        if let Some((reads, cost)) = choice.estimated {
            let plan = choice.plan;
            let rival = false;
            all.insert(
                0,
                Estimated {
                    plan,
                    reads,
                    cost,
                    rival,
                },
            );
        }
        let trials = Vec::new();
        Ok(Candidates { all, trials })
    }

    /// Runs all against each other until one has a first batch, where there is more than one.
    pub fn run(
        &mut self,
        op: &mut OpCtx,
        read: &ReadRequest<'_>,
        view: &storage::View,
        coll: &Arc<Collection>,
    ) -> Result<()> {
        if self.all.len() > 1 {
            let plans = self.all.iter().take(MOST_TRIALS).map(|e| e.plan.clone());
            self.trials = RecordStream::try_plans(op, view, coll, plans, read)?;
        }
        Ok(())
    }

    /// The plans that did not win, and what each was thought to read.
    pub fn rejected(&self, winner: &[u32], draw: &dyn Fn(&Plan) -> PlanStage) -> Vec<DocBuf> {
        let lost = self.all.iter().filter(|e| e.plan.form() != winner);
        lost.map(|e| {
            let mut w = Writer::new();
            w.bool("isCached", false)
                .extend(draw(&e.plan).to_doc(&|_, _| {}).as_doc());
            write_estimates(&mut w, e);
            w.finish()
        })
        .collect()
    }

    /// What each plan did in the trial, the winner first.
    pub fn trial_plans(&self, winner: &[u32], draw: &dyn Fn(&Plan) -> PlanStage) -> Vec<DocBuf> {
        let mut both: Vec<_> = self.all.iter().zip(&self.trials).collect();
        both.sort_by_key(|(e, _)| e.plan.form() != winner);
        let one = |(e, t): (&Estimated, &Trial)| {
            let c = Counted::from(t);
            let mut w = Writer::new();
            c.write_trial(&mut w);
            write_estimates(&mut w, e);
            let stages = execution_stages(&draw(&e.plan), &c, None);
            w.doc("executionStages", stages.as_doc());
            w.finish()
        };
        both.into_iter().map(one).collect()
    }
}

/// The estimated reads of a plan, and whether its entries were counted to their end.
fn write_estimates(w: &mut Writer, e: &Estimated) {
    w.f64("keysEstimate", e.reads.keys.round())
        .f64("docsEstimate", e.reads.given.round())
        .bool("counted", e.reads.exact)
        .f64("costEstimate", e.cost.likely.round());
}
