//! The stages of each seed: commands of studies at the author's sizes, times a scale, and what each takes.
//!
//! Times are estimates from one machine of two cores; a machine like the authors' takes less.

/// Where a stage runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Where {
    /// The study starts its servers itself.
    Own,
    /// Products that are started for it beside each other, each with so many bytes of cache.
    Beside(Vec<String>, u64),
}

#[derive(Clone, Debug)]
pub struct SeedStage {
    pub name: String,
    /// What follows `pando lab`.
    pub words: Vec<String>,
    pub place: Where,
    pub seconds: f64,
    pub disk: u64,
    pub memory: u64,
}

/// Bytes of a record on the disk with its indexes, log and what merging needs for a while.
const ON_DISK: f64 = 2.5;
/// Operations a second that estimates count on: inserts from one connection, in batches, with a sync each.
const INSERTS: f64 = 12_000.0;
const BATCHED: f64 = 50_000.0;
/// What a server takes besides its cache.
const PROCESS: u64 = 300_000_000;
/// The least cache that every product starts with.
const LEAST_CACHE: u64 = 64_000_000;

pub fn of(seed: u8, scale: f64, hurry: f64, products: &[String]) -> Vec<SeedStage> {
    let scaled = Scaled { scale, hurry };
    match seed {
        1 => scaled.single_and_sharded(products),
        2 => scaled.insert_modes(products),
        3 => scaled.big_machine(products),
        4 => scaled.micro_shards(products),
        _ => scaled.complaints(),
    }
}

struct Scaled {
    scale: f64,
    hurry: f64,
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(String::from).collect()
}

impl Scaled {
    fn records(&self, published: f64) -> u64 {
        ((published * self.scale) as u64).max(2000)
    }

    fn cache(&self, published: f64) -> u64 {
        ((published * self.scale) as u64).max(LEAST_CACHE)
    }

    /// A time of measuring, as options take it.
    fn time(&self, seconds: f64) -> String {
        format!("{:.1}s", self.spent(seconds))
    }

    /// A time of measuring, in seconds, as the hurry divides it.
    fn spent(&self, seconds: f64) -> f64 {
        (seconds / self.hurry).max(0.5)
    }

    fn stage(&self, name: &str, line: &str, seconds: f64, bytes: f64, cache: u64) -> SeedStage {
        SeedStage {
            name: name.into(),
            words: words(line),
            place: Where::Own,
            seconds,
            disk: (bytes * ON_DISK) as u64,
            memory: cache + PROCESS,
        }
    }

    /// Study A: 200 million records of 1 KB, 24 GB of memory; three shards of 7 GB behind a router.
    fn single_and_sharded(&self, products: &[String]) -> Vec<SeedStage> {
        let n = self.records(2e8);
        let (records, bytes) = (n as f64, n as f64 * 1024.0);
        let (one, shards) = (self.cache(24e9), self.cache(21e9));
        let steps = if self.scale > 0.5 { 50 } else { 20 };
        let reads = f64::from(steps) * 4.0 * self.spent(5.0);
        let load = records / BATCHED;
        let mut all = Vec::new();
        for p in products {
            let study = format!(
                "study single --launch {p} --records {n} --steps {steps} --duration {}",
                self.time(5.0)
            );
            let inserts = format!(
                "study single --launch {p} --records {n} --only 1,3 --insert-duration 0s --memory {one}"
            );
            all.push(self.stage(
                &format!("inserts-{p}"),
                &inserts,
                2.0 * records / INSERTS,
                bytes,
                one,
            ));
            let safe = format!(
                "study single --launch {p} --records {n} --only 3j --insert-duration {} --memory {one}",
                self.time(120.0)
            );
            all.push(self.stage(
                &format!("journal-{p}"),
                &safe,
                self.spent(120.0),
                bytes / 10.0,
                one,
            ));
            let single = format!("{study} --only 2,4,5,6,7 --memory {one}");
            all.push(self.stage(&format!("single-{p}"), &single, load + reads, bytes, one));
            if !matches!(p.as_str(), "pando" | "mongod") {
                continue;
            }
            let both = format!(
                "{study} --only 2,3,4,5,6,7 --insert-duration {} --cluster --shards 3 --against-one --repeat 1 --memory {shards}",
                self.time(60.0)
            );
            all.push(self.stage(
                &format!("sharded-{p}"),
                &both,
                3.0 * (load + reads),
                2.0 * bytes,
                shards,
            ));
            let moves = format!(
                "study moves --launch {p} --shards 3 --load inserts,batches --duration {} --memory {shards}",
                self.time(30.0)
            );
            all.push(self.stage(
                &format!("moves-{p}"),
                &moves,
                4.0 * self.spent(30.0) + 20.0,
                3e9 * self.scale.max(0.01),
                shards,
            ));
        }
        let also = format!(
            "study pains --only threads,restart,recovery --records {} --duration {} --after-restart {} --recover-gb {:.3}",
            (n / 10).max(2000),
            self.time(5.0),
            self.time(60.0),
            (bytes / 1e10).max(0.02)
        );
        let seconds = 9.0 * self.spent(5.0)
            + self.spent(60.0)
            + 30.0
            + bytes / 1e9
            + records / 10.0 / BATCHED;
        all.push(self.stage("also", &also, seconds, bytes / 5.0, 512_000_000));
        all
    }

    /// Study B: 100 million records of 1 KB; MongoDB against MySQL.
    fn insert_modes(&self, products: &[String]) -> Vec<SeedStage> {
        let n = self.records(1e8);
        let (records, bytes) = (n as f64, n as f64 * 1024.0);
        let cache = self.cache(16e9);
        let each = products.len() as f64;
        let fills = ["constant", "random"].map(|fill| {
            let line = format!("study keys --records {n} --fields {fill} --repeat 1");
            let reads = 2.0 * records.min(9e6) / INSERTS;
            let seconds = each * (3.0 * records / INSERTS + reads);
            let stage = self.stage(
                &format!("keys-{fill}"),
                &line,
                seconds,
                bytes * each,
                cache * products.len() as u64,
            );
            SeedStage {
                place: Where::Beside(products.to_vec(), cache),
                ..stage
            }
        });
        fills.to_vec()
    }

    /// Study C: 5, 30 and 100 million records of 1 KB, 256 GB of memory; and files, which its author announced.
    fn big_machine(&self, products: &[String]) -> Vec<SeedStage> {
        // The published machine held all in its memory; what falls there falls with the indexes.
        let bytes = 1.35e8 * self.scale * 1024.0;
        let cache = self.cache(100e9);
        let each = products.len() as f64;
        let line = format!(
            "study sizes --scale {} --duration {} --warmup {} --repeat 1",
            self.scale,
            self.time(4.0),
            self.time(1.0)
        );
        // Three sizes, five scenarios, nine numbers of connections, each with a second beside what is measured.
        let point = self.spent(4.0) + self.spent(1.0) + 1.0;
        let seconds = each * (135.0 * point + 1.35e8 * self.scale / BATCHED);
        let sizes = SeedStage {
            place: Where::Beside(products.to_vec(), cache),
            ..self.stage(
                "sizes",
                &line,
                seconds,
                bytes * each,
                cache * products.len() as u64,
            )
        };
        let files = ((4096.0 * self.scale) as u64).clamp(8, 4096);
        let line = format!("study files --launch pando --files {files} --size 4m");
        let stored = files as f64 * 4e6;
        vec![
            sizes,
            self.stage(
                "files",
                &line,
                6.0 * stored / 1e8 + 10.0,
                stored * 2.0,
                512_000_000,
            ),
        ]
    }

    /// Study D: 5 million records of 2 KB; one process against 2, 4, 6, 8 shards behind a router.
    fn micro_shards(&self, products: &[String]) -> Vec<SeedStage> {
        let n = self.records(5e6);
        let bytes = n as f64 * 2048.0;
        let cache = self.cache(32e9);
        let own = products
            .iter()
            .filter(|p| matches!(p.as_str(), "pando" | "mongod"));
        let stages = own.map(|p| {
            let line = format!(
                "study shards --launch {p} --cluster --records {n} --connections 8,16,32,64 --duration {} --repeat 1 --memory {cache}",
                self.time(10.0)
            );
            let seconds = 5.0 * (4.0 * (self.spent(10.0) + 1.0) + n as f64 / INSERTS + 15.0);
            self.stage(&format!("shards-{p}"), &line, seconds, bytes, cache + 8 * PROCESS)
        });
        stages.collect()
    }

    /// Study E, with data of four times the memory.
    fn complaints(&self) -> Vec<SeedStage> {
        let n = self.records(1e8);
        let bytes = n as f64 * 1024.0;
        let memory = ((bytes / 4.0) as u64).max(256_000_000);
        let line = format!(
            "study pains --records {n} --memory {memory} --duration {} --after-restart {} --recover-gb {:.3}",
            self.time(5.0),
            self.time(60.0),
            (bytes / 4e9).clamp(0.02, 20.0)
        );
        let seconds =
            n as f64 * 2.0 / INSERTS + 18.0 * self.spent(5.0) + self.spent(60.0) + bytes / 4e8;
        vec![self.stage("pains", &line, seconds, bytes * 2.0, memory)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_is_a_command_that_the_laboratory_knows() {
        let products = ["pando", "mongod"].map(String::from);
        for seed in 1..=5 {
            let all = of(seed, 0.01, 2.0, &products);
            assert!(!all.is_empty());
            for s in &all {
                crate::knows(&s.words).unwrap_or_else(|e| panic!("{:?}: {e}", s.words));
                assert!(s.seconds > 0.0 && s.disk > 0 && s.memory > 0, "{s:?}");
            }
            let whole = of(seed, 1.0, 1.0, &products);
            let time = |all: &[SeedStage]| all.iter().map(|s| s.seconds).sum::<f64>();
            assert!(time(&whole) > time(&all));
        }
    }

    #[test]
    fn the_published_size_is_that_of_the_author() {
        let one = ["pando".to_string()];
        let says = |seed: u8, what: &str| {
            let all = of(seed, 1.0, 1.0, &one);
            all.iter().any(|s| s.words.join(" ").contains(what))
        };
        assert!(says(1, "--records 200000000 --steps 50"));
        assert!(says(2, "--records 100000000 --fields constant"));
        assert!(says(3, "--scale 1 "));
        assert!(says(4, "--records 5000000 "));
    }
}
