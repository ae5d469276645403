//! `pando lab study plans`: study K, whether a server takes the index that a good administrator would choose.
//!
//! ```text
//! RandomCollection (documents, indexes, history) ─ RandomQuery ─ planned, and by every index that bears on it ─ QueryChoice ─ Choices of a target
//! ```
//! Each query runs as the server plans it, and with a hint of every index that begins with a field of
//! its filter or gives the order. Examined entries and documents count, by `explain`: each document as
//! four entries. The best is the least of all runs. An index that neither narrows nor gives the order is
//! no plan, and neither is a scan of the collection; of an `$or` by itself the best index of each branch
//! is one too.
//!
//! Invariant: every run of a query must give the same documents, as far as one collection gives the same to all; else the
//! study ends. Which queries are asked depends on the seed alone, not on what a target answers.

mod explain;
pub mod findings;
mod query;
mod schema;

use crate::connection::{MongoAddress, MongoConnection};
use crate::fault::{Fault, Result};
use crate::fleet::{catch_interrupts, interrupted};
use crate::output::{Journal, Output, Page};
use crate::progress::say;
use crate::report::{CheckedFigure, Choices, Draft, QueryChoice, TargetInfo};
use crate::targets::local::{Means, Started, Up};
use crate::terms::{count, positive};
use explain::{AccessPath, PlanRead, ServedCollection, proper, same};
use query::RandomQuery;
use schema::{History, RandomCollection, name};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// Servers that run already.
    #[arg(long, conflicts_with = "launch")]
    pub url: Vec<String>,
    /// Products that are started and asked the same: pando, mongod.
    #[arg(long, value_name = "PRODUCT", value_delimiter = ',')]
    pub launch: Vec<String>,
    #[command(flatten)]
    pub means: Means,
    /// Random collections, each with two to seven indexes.
    #[arg(long, default_value = "20", value_parser = count)]
    pub schemas: u64,
    /// Queries of each collection; those on which no index bears are not asked.
    #[arg(long, default_value = "50", value_parser = count)]
    pub queries: u64,
    /// The most documents of a collection; the fewest are 100.
    #[arg(long, default_value = "3000", value_parser = count)]
    pub docs: u64,
    /// Another seed gives other collections and queries.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Fail unless the chosen plan reads at most 1.2 times what the best does in 95% of the queries, 2 times in 99.5%, and
    /// never more than 10 times and 200.
    #[arg(long)]
    pub bars: bool,
    #[command(flatten)]
    pub to: Output,
}

const COLLECTION: &str = "plans";
/// So many queries are asked before a collection grows.
const BEFORE_GROWTH: usize = 10;
/// How often is said how far it is.
const SAY_EVERY: Duration = Duration::from_secs(5);

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    let sizes = [args.schemas, args.queries].map(|n| n as usize);
    positive("--schemas and --queries", &sizes)?;
    if args.docs < 100 {
        return Err(Fault::Usage("--docs must be at least 100".into()));
    }
    let (_started, urls) = args.servers()?;
    let mut draft = Draft::new("study", "K-plans");
    draft.set("schemas", args.schemas);
    draft.set("queries", args.queries);
    draft.set("docs", args.docs);
    draft.set("seed", args.seed);
    draft.note(
        "A read is an index entry examined; a document fetched counts four. A document is added to both sides of a quotient. What trials of several plans read before one was taken is not in it, as in explain's totals.",
    );
    draft.note(
        "Each query is run once before it is explained; MongoDB's explain chooses afresh all the same, past its plan cache.",
    );
    let mut journal = Journal::open(&mut draft, &args.to)?;
    for url in &urls {
        if !interrupted() {
            args.target(url, &mut draft, &mut journal)?;
        }
    }
    if args.bars {
        args.judge(&mut draft);
    }
    Ok(journal.finish(draft, Page::Beside)?.passed())
}

impl Args {
    /// Those that are given, or those that are started: PandoDB's own where nothing is said.
    fn servers(&self) -> Result<(Started, Vec<String>)> {
        let (mut started, mut urls) = (Started::default(), self.url.clone());
        let mut products = self.launch.clone();
        if urls.is_empty() && products.is_empty() {
            products.push("pando".into());
        }
        for product in &products {
            if !["pando", "mongod"].contains(&product.as_str()) {
                return Err(Fault::Usage(format!(
                    "{product} has no hints and no explain of MongoDB's protocol"
                )));
            }
            let mut means = self.means.clone();
            // With several products a given program is the one that is not found by itself.
            let given = means.binary.take();
            means.binary = given.filter(|_| product == "mongod" || products.len() == 1);
            urls.push(started.add(&Up::new(product, means, 1), self.to.quiet)?);
        }
        Ok((started, urls))
    }

    /// All collections on one target, after those that a run that died has asked.
    fn target(&self, url: &str, draft: &mut Draft, journal: &mut Journal) -> Result<()> {
        let address = MongoAddress::parse(url)?;
        let mut connection = address.connect()?;
        let mut info = TargetInfo::of(&address, &mut connection);
        draft.tell_apart(&mut info);
        let label = info.label();
        draft.add_target(info);
        let db = address.database.as_deref().unwrap_or("lab");
        let all = &mut draft.report.choices;
        if all.iter().all(|c| c.target != label) {
            all.push(Choices {
                target: label.clone(),
                ..Choices::default()
            });
        }
        let own = |draft: &Draft| {
            let all = draft.report.choices.iter();
            all.filter(|c| c.target == label).map(|c| c.schemas).sum()
        };
        let mut said = Instant::now();
        for number in own(draft)..self.schemas {
            let schema = RandomCollection::new(self.seed, number, self.docs);
            if number == 0 || said.elapsed() > SAY_EVERY {
                said = Instant::now();
                let of = self.schemas;
                let line = format!("{label}: collection {} of {of}", number + 1);
                say(self.to.quiet, line);
            }
            let Some(mut chosen) = self.collection(&mut connection, db, &schema)? else {
                break;
            };
            for c in &mut chosen {
                c.schema = number + 1;
            }
            let all = draft.report.choices.iter_mut();
            all.filter(|c| c.target == label)
                .for_each(|c| c.add(std::mem::take(&mut chosen)));
            journal.save(draft);
        }
        connection.drop_collection(db, COLLECTION)
    }

    /// One collection, made anew, and all its queries; nothing when the run was interrupted.
    fn collection(
        &self,
        connection: &mut MongoConnection,
        db: &str,
        schema: &RandomCollection,
    ) -> Result<Option<Vec<QueryChoice>>> {
        connection.drop_collection(db, COLLECTION)?;
        connection.create_indexes(db, COLLECTION, &[])?;
        let mut r = schema.queries();
        let queries = (1..=self.queries).map(|n| (n, RandomQuery::new(schema, &mut r)));
        let queries: Vec<(u64, RandomQuery)> = queries
            .filter(|(_, q)| !q.bearing(schema).is_empty() || !q.parts(schema).is_empty())
            .collect();
        let mut place = ServedCollection {
            connection,
            db,
            collection: COLLECTION,
        };
        fill(&mut place, schema, &queries)?;
        let there = place.connection.count(db, COLLECTION)?;
        if there != schema.documents {
            return Err(Fault::Check(format!(
                "{there} documents of {} that were inserted",
                schema.documents
            )));
        }
        let mut all = Vec::new();
        for (number, q) in &queries {
            if interrupted() {
                return Ok(None);
            }
            let mut choice = choice(&mut place, schema, q)?;
            choice.number = *number;
            all.push(choice);
        }
        Ok(Some(all))
    }

    /// The bars of every target.
    fn judge(&self, draft: &mut Draft) {
        let mut checks = Vec::new();
        for c in &draft.report.choices {
            let bar = |what: &str, value: f64, unit: &str, bar: f64| {
                CheckedFigure::at_most(&format!("{}: {what}", c.target), value, unit, bar)
            };
            checks.push(bar("95% of queries", c.at(0.95), "times the best", 1.2));
            checks.push(bar("99.5% of queries", c.at(0.995), "times the best", 2.0));
            let beyond = c.beyond() as f64;
            checks.push(bar("above 10 times and 200 reads", beyond, "queries", 0.0));
        }
        checks.into_iter().for_each(|c| draft.check(c));
    }
}

/// The documents and the indexes, in the order that the schema says.
fn fill(
    place: &mut ServedCollection<'_>,
    schema: &RandomCollection,
    queries: &[(u64, RandomQuery)],
) -> Result<()> {
    let all = schema.documents;
    match schema.history {
        History::IndexesFirst => {
            place.index(schema)?;
            place.insert(schema, 0..all)
        }
        History::DocumentsFirst => {
            place.insert(schema, 0..all)?;
            place.index(schema)
        }
        History::Grown => {
            place.insert(schema, 0..all / 10)?;
            place.index(schema)?;
            for (_, q) in queries.iter().take(BEFORE_GROWTH) {
                place.ids(q, AccessPath::Planned)?;
            }
            place.insert(schema, all / 10..all)
        }
    }
}

/// One query by all ways.
fn choice(
    place: &mut ServedCollection<'_>,
    schema: &RandomCollection,
    q: &RandomQuery,
) -> Result<QueryChoice> {
    let ids = place.ids(q, AccessPath::Planned)?;
    let chosen = place.explain(q, AccessPath::Planned)?;
    proper(schema, q, &chosen.plan, &ids)?;
    let scanned = place.ids(q, AccessPath::Scan)?;
    same(schema, q, (&chosen.plan, &ids), ("a scan", &scanned))?;
    let mut best = chosen.clone();
    for bearing in q.bearing(schema) {
        let way = AccessPath::By(bearing.index);
        let (read, name) = (place.explain(q, way)?, name(bearing.index));
        let told = place.ids(q, way)?;
        proper(schema, q, &name, &told)?;
        same(schema, q, (&chosen.plan, &ids), (&name, &told))?;
        let is_plan = bearing.narrows || !read.sorts;
        if is_plan && read.cost < best.cost {
            best = read;
        }
    }
    if let Some(read) = by_branches(place, schema, q)?.filter(|r| r.cost < best.cost) {
        best = read;
    }
    Ok(QueryChoice {
        chosen: chosen.cost,
        chosen_by: chosen.plan,
        best: best.cost,
        best_by: best.plan,
        query: q.text(),
        documents: schema.documents,
        indexes: schema.indexes.iter().map(name).collect(),
        ..QueryChoice::default()
    })
}

/// What an `$or` reads at the most when each branch takes its best index; nothing of other queries.
fn by_branches(
    place: &mut ServedCollection<'_>,
    schema: &RandomCollection,
    q: &RandomQuery,
) -> Result<Option<PlanRead>> {
    let mut all: Vec<PlanRead> = Vec::new();
    for part in q.parts(schema) {
        let mut best: Option<PlanRead> = None;
        for bearing in part.bearing(schema) {
            let read = place.explain(&part, AccessPath::By(bearing.index))?;
            best = match best {
                Some(have) if have.cost <= read.cost => Some(have),
                _ => Some(read),
            };
        }
        all.extend(best);
    }
    let plans: Vec<&str> = all.iter().map(|r| r.plan.as_str()).collect();
    let plan = format!("OR of {}", plans.join(", "));
    let cost = all.iter().map(|r| r.cost).sum();
    let sorts = !q.sort.is_empty();
    Ok((!all.is_empty()).then_some(PlanRead { cost, plan, sorts }))
}
