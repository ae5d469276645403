//! `pando lab seed 1…5`: the whole test of one of the authors whose studies this laboratory repeats, scaled by one number.
//!
//! ```text
//! stages (commands of studies) ─ plan: time, disk, memory ─ refused, or each run into the seed's folder ─ statements ─ page
//! ```
//! A stage that is done is not done again, and one that was cut short goes on where it stood: the same command resumes. The
//! end is a table of the author's statements, each with whether it holds for a product, and by which figure.
//!
//! Invariant: nothing is started before the plan is printed and fits.

mod plan;
mod stages;
mod statements;

use crate::fault::{Fault, Result};
use crate::fleet::{catch_interrupts, interrupted};
use crate::html;
use crate::lang::tr;
use crate::output::unfinished;
use crate::report::{Draft, Report};
use crate::sheet::{width, wrapped};
use crate::targets::local::{Started, Up, installed};
use crate::targets::{self};
use crate::{sheets, show, text};
use plan::SeedPlan;
use stages::{SeedStage, Where};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// 1: one process against shards (study A). 2: MongoDB against MySQL (B). 3: YCSB on one big machine (C).
    /// 4: micro-sharding (D). 5: what all of them complained of (E).
    #[arg(value_parser = clap::value_parser!(u8).range(1..=5))]
    pub seed: u8,
    /// The share of the author's records and memory; 1 is the published size.
    #[arg(long, default_value_t = 0.001)]
    pub scale: f64,
    /// Products, started for each stage that they can run: pando, mariadb, postgres, mongod.
    #[arg(long, value_delimiter = ',')]
    pub launch: Vec<String>,
    /// The folder of results (default: lab-results/seed-N-SCALE). What is done there is not done again.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Print what it takes, and stop.
    #[arg(long)]
    pub plan: bool,
    /// Run although the plan says that it does not fit.
    #[arg(long)]
    pub anyway: bool,
    /// Only the stages of these names, as the plan has them.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Divides the length of everything that is measured by time, for a first look.
    #[arg(long, default_value_t = 1.0)]
    pub hurry: f64,
    /// No progress.
    #[arg(long, short)]
    pub quiet: bool,
}

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    let is_share = |v: f64| v.is_finite() && v > 0.0;
    if !is_share(args.scale) || args.scale > 1.0 || !is_share(args.hurry) {
        return Err(Fault::Usage(
            "--scale is more than 0 and at most 1, --hurry more than 0".into(),
        ));
    }
    let products = products(&args)?;
    let folder = args.out.clone().unwrap_or_else(|| {
        PathBuf::from("lab-results").join(format!("seed-{}-{}", args.seed, args.scale))
    });
    let mut stages = stages::of(args.seed, args.scale, args.hurry, &products);
    if let Some(unknown) = args
        .only
        .iter()
        .find(|n| stages.iter().all(|s| s.name != **n))
    {
        return Err(Fault::Usage(format!(
            "there is no stage {unknown}; see --plan"
        )));
    }
    stages.retain(|s| args.only.is_empty() || args.only.contains(&s.name));
    let plan = SeedPlan::of(&stages, &folder);
    for line in plan.lines() {
        println!("{}", wrapped(&line, width()));
    }
    if args.plan {
        return Ok(plan.refusal().is_none());
    }
    if let Some(why) = plan.refusal().filter(|_| !args.anyway) {
        return Err(Fault::Usage(text!(
            "it does not fit: {0} (--anyway runs it all the same)",
            why
        )));
    }
    std::fs::create_dir_all(&folder).map_err(crate::fault::local(folder.display()))?;
    for stage in &stages {
        if interrupted() {
            break;
        }
        run(stage, &folder, &args)?;
    }
    conclude(&args, &products, &stages, &folder)
}

/// What is measured: what the user names, or PandoDB and what the author measured as far as it is here.
fn products(args: &Args) -> Result<Vec<String>> {
    if let Some(missing) = args.launch.iter().find(|p| !installed(p)) {
        return Err(Fault::Usage(format!(
            "{missing} cannot be started here; see `pando lab targets`"
        )));
    }
    if !args.launch.is_empty() {
        return Ok(args.launch.clone());
    }
    let mut all = vec!["pando".to_string()];
    all.extend(
        ["mariadb"]
            .map(String::from)
            .into_iter()
            .filter(|p| args.seed == 2 && installed(p)),
    );
    Ok(all)
}

fn place(stage: &SeedStage, folder: &Path) -> PathBuf {
    folder.join(format!("{}.json", stage.name))
}

/// A stage, unless it is done; one that was cut short goes on.
fn run(stage: &SeedStage, folder: &Path, args: &Args) -> Result<()> {
    let out = place(stage, folder);
    let done = out.is_file().then(|| Report::read(&out)).transpose()?;
    let cut = done.as_ref().is_some_and(|r| r.interrupted);
    if done.is_some() && !cut && !unfinished(&out).is_file() {
        println!("{}", text!("{0}: done already", stage.name));
        return Ok(());
    }
    println!(
        "\n{}",
        wrapped(
            &format!("{}: pando lab {}", stage.name, stage.words.join(" ")),
            width()
        )
    );
    let mut words = stage.words.clone();
    let mut started = Started::default();
    if let Where::Beside(products, memory) = &stage.place {
        for product in products {
            let means = crate::targets::local::Means::with_memory(*memory);
            let url = started.add(&Up::new(product, means, 1), args.quiet)?;
            // Open once, so that a server that does not answer is told of here.
            targets::open(&url)?.info()?;
            words.extend(["--url".to_string(), url]);
        }
    }
    words.extend(["--out".into(), out.display().to_string()]);
    if cut || unfinished(&out).is_file() {
        words.push("--resume".into());
    }
    if args.quiet {
        words.push("--quiet".into());
    }
    crate::run_words(&words).map(drop)
}

/// The author's statements against what was measured, as a result and a page.
fn conclude(args: &Args, products: &[String], stages: &[SeedStage], folder: &Path) -> Result<bool> {
    let mut reports = Vec::new();
    for stage in stages {
        let out = place(stage, folder);
        if out.is_file() {
            reports.push(Report::read(&out)?);
        }
    }
    let mut draft = Draft::new("seed", &format!("seed-{}", args.seed));
    draft.set("scale", args.scale);
    draft.set("products", products.join(", "));
    draft.report.statements = statements::of(args.seed, &reports);
    for info in reports
        .iter()
        .flat_map(|r| r.targets.iter().chain(&r.target))
    {
        let known = draft
            .report
            .targets
            .iter()
            .any(|t| t.label() == info.label());
        if !known {
            draft.add_target(info.clone());
        }
    }
    let seed = draft.end()?;
    seed.write(&folder.join("statements.json"))?;
    show::print(&sheets::statements(&seed));
    let mut all = vec![seed];
    all.extend(reports);
    let page = folder.join("index.html");
    html::write(&all, &page, None)?;
    println!("\n{}", text!("page: {0}", page.display()));
    if interrupted() {
        println!("{}", tr("interrupted; the same command goes on"));
    }
    Ok(true)
}
