//! What the properties mean, with YCSB's defaults.

use super::properties::Properties;
use crate::distribution::Chooser;
use crate::fault::{Fault, Result, local};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestDistribution {
    Uniform,
    Zipfian,
    /// Ours: a zipfian over the true number of records.
    ZipfianExact,
    Latest,
    Hotspot,
    Sequential,
    Exponential,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    Constant,
    Uniform,
    Zipfian,
    /// By the file `fieldlengthhistogram`.
    Histogram,
}

/// A histogram of lengths as YCSB's `HistogramGenerator` reads it: `BlockSize<tab>n`, then lines of bucket and count; what
/// falls into bucket `i` is `(i + 1) * n` long, what falls into the last one less `n`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets {
    block: u64,
    /// Running sums of the counts.
    sums: Vec<u64>,
}

impl Buckets {
    pub fn parse(text: &str) -> Option<Buckets> {
        let mut lines = text.lines().filter(|l| !l.trim().is_empty());
        let block: u64 = lines
            .next()?
            .strip_prefix("BlockSize")?
            .trim()
            .parse()
            .ok()?;
        let mut sums = Vec::new();
        let mut sum = 0u64;
        for (at, line) in lines.enumerate() {
            let (bucket, count) = line.trim().split_once('\t')?;
            if bucket.trim().parse::<usize>().ok()? != at {
                return None;
            }
            sum = sum.checked_add(count.trim().parse().ok()?)?;
            sums.push(sum);
        }
        let sound = (1..=1 << 24).contains(&block) && sum > 0 && sums.len() <= 1 << 20;
        sound.then_some(Buckets { block, sums })
    }

    pub fn longest(&self) -> u64 {
        self.block * (self.sums.len() as u64)
    }

    /// The length for a draw `u` in `[0, 1)`.
    pub fn at(&self, u: f64) -> u64 {
        let area = self.sums.last().copied().unwrap_or(0);
        let number = (u * area as f64) as u64;
        let last = self.sums.len().saturating_sub(1) as u64;
        let i = self.sums.partition_point(|s| *s < number) as u64;
        if i < last {
            (i + 1) * self.block
        } else {
            last * self.block
        }
    }
}

#[derive(Clone, Debug)]
pub struct Spec {
    pub table: String,
    pub records: u64,
    pub operations: u64,
    pub insert_start: u64,
    pub insert_count: u64,
    pub field_count: usize,
    pub field_length: u64,
    pub min_field_length: u64,
    pub field_length_distribution: Length,
    /// Lengths with their shares, of a histogram.
    pub field_lengths: Arc<Buckets>,
    pub field_prefix: String,
    pub read_all_fields: bool,
    pub write_all_fields: bool,
    pub data_integrity: bool,
    pub read: f64,
    pub update: f64,
    pub insert: f64,
    pub scan: f64,
    pub read_modify_write: f64,
    pub delete: f64,
    pub request: RequestDistribution,
    pub min_scan_length: u64,
    pub max_scan_length: u64,
    pub scan_length_distribution: Length,
    pub ordered_inserts: bool,
    pub zero_padding: usize,
    pub hotspot_data: f64,
    pub hotspot_operations: f64,
    pub exponential_percentile: f64,
    pub exponential_fraction: f64,
    /// Documents of one insert message (`mongodb.batchsize` of the binding, or `batchsize`).
    pub batch: u64,
    pub upsert: bool,
}

/// Properties of YCSB and its bindings that are accepted and say nothing about the operations: what they are for (rates,
/// times, output, addresses) is read elsewhere, or has no counterpart here.
const WITHOUT_EFFECT: &[&str] = &[
    // Of Bigtable's binding; YCSB's own template names them.
    "discardscannedrecord",
    "maxscanrate",
    "scanoptimelimit",
    "workload",
    "db",
    "threadcount",
    "status.interval",
    "label",
    "measurementtype",
    "measurement.interval",
    "measurement.histogram.verbose",
    "measurement.raw.output_file",
    "measurement.raw.no_summary",
    "measurement.trackjvm",
    "histogram.buckets",
    "timeseries.granularity",
    "hdrhistogram.percentiles",
    "hdrhistogram.fileoutput",
    "hdrhistogram.output.path",
    "reportlatencyforeacherror",
    "latencytrackederrors",
    "exporter",
    "exportfile",
    "maxexecutiontime",
    "target",
    "core_workload_insertion_retry_limit",
    "core_workload_insertion_retry_interval",
    "mongodb.url",
    "mongodb.database",
    "mongodb.maxconnections",
    "mongodb.threadsAllowedToBlockForConnectionMultiplier",
    "mongodb.writeConcern",
    "mongodb.readPreference",
    "readallfieldsbyname",
    "lab.options",
    "db.driver",
    "db.url",
    "db.user",
    "db.passwd",
    "db.batchsize",
    "jdbc.fetchsize",
    "jdbc.autocommit",
    "jdbc.batchupdateapi",
    "postgrenosql.url",
    "postgrenosql.user",
    "postgrenosql.passwd",
    "postgrenosql.autocommit",
    "debug",
    "dotransactions",
];

/// Properties that YCSB heeds and we do not, with the values that ask for nothing: anything else is named.
const NOT_HONOURED: &[(&str, &[&str])] = &[
    ("measurement.trackjvm", &["false"]),
    ("hdrhistogram.fileoutput", &["false"]),
    ("reportlatencyforeacherror", &["false"]),
    ("core_workload_insertion_retry_limit", &["0"]),
    ("mongodb.readPreference", &["primary"]),
    ("jdbc.autocommit", &["true"]),
    ("jdbc.batchupdateapi", &["false"]),
    ("db.batchsize", &["0", "1", "-1"]),
    ("postgrenosql.autocommit", &["true"]),
    ("debug", &["false"]),
];

/// Properties that change the load.
const KNOWN: &[&str] = &[
    "table",
    "recordcount",
    "operationcount",
    "insertstart",
    "insertcount",
    "fieldcount",
    "fieldlength",
    "minfieldlength",
    "fieldlengthdistribution",
    "fieldlengthhistogram",
    "fieldnameprefix",
    "readallfields",
    "writeallfields",
    "dataintegrity",
    "readproportion",
    "updateproportion",
    "insertproportion",
    "scanproportion",
    "readmodifywriteproportion",
    "deleteproportion",
    "requestdistribution",
    "minscanlength",
    "maxscanlength",
    "scanlengthdistribution",
    "insertorder",
    "zeropadding",
    "hotspotdatafraction",
    "hotspotopnfraction",
    "exponential.percentile",
    "exponential.frac",
    "batchsize",
    "mongodb.batchsize",
    "mongodb.upsert",
];

fn length(p: &Properties, key: &str) -> Result<Length> {
    match p.get(key).unwrap_or("constant") {
        "constant" => Ok(Length::Constant),
        "uniform" => Ok(Length::Uniform),
        "zipfian" => Ok(Length::Zipfian),
        "histogram" if key == "fieldlengthdistribution" => Ok(Length::Histogram),
        other => Err(Fault::Usage(format!(
            "{key}={other} is not known (constant, uniform, zipfian)"
        ))),
    }
}

/// Whether a property means anything here, or in YCSB.
pub fn known(key: &str) -> bool {
    KNOWN.contains(&key) || WITHOUT_EFFECT.contains(&key)
}

/// A warning for each property that is not known or not heeded.
fn warnings(p: &Properties) -> Vec<String> {
    let mut warnings = Vec::new();
    for (key, value) in p.iter() {
        if !known(key) {
            warnings.push(format!("property {key} is not known"));
        }
        let named = NOT_HONOURED.iter().find(|(k, _)| *k == key);
        if named.is_some_and(|(_, nothing)| !nothing.contains(&value.trim())) {
            warnings.push(format!("{key}={value} is not honoured"));
        }
    }
    warnings
}

fn request(p: &Properties) -> Result<RequestDistribution> {
    Ok(match p.get("requestdistribution").unwrap_or("uniform") {
        "uniform" => RequestDistribution::Uniform,
        "zipfian" => RequestDistribution::Zipfian,
        "zipfian_exact" => RequestDistribution::ZipfianExact,
        "latest" => RequestDistribution::Latest,
        "hotspot" => RequestDistribution::Hotspot,
        "sequential" => RequestDistribution::Sequential,
        "exponential" => RequestDistribution::Exponential,
        other => {
            return Err(Fault::Usage(format!(
                "requestdistribution={other} is not known (uniform, zipfian, latest, hotspot, sequential, exponential, zipfian_exact)"
            )));
        }
    })
}

impl Spec {
    /// The workload, and a warning for each property that is not known or not heeded.
    pub fn new(p: &Properties) -> Result<(Spec, Vec<String>)> {
        match p.get("workload") {
            None
            | Some("site.ycsb.workloads.CoreWorkload" | "com.yahoo.ycsb.workloads.CoreWorkload") => {
            }
            Some(other) => {
                return Err(Fault::Usage(format!(
                    "workload={other}: only the core workload is known"
                )));
            }
        }
        let records: u64 = p.parse("recordcount", 0)?;
        let insert_start: u64 = p.parse("insertstart", 0)?;
        let insert_count = p.parse("insertcount", records.saturating_sub(insert_start))?;
        let mut spec = Spec {
            table: p.get("table").unwrap_or("usertable").to_string(),
            records,
            operations: p.parse("operationcount", 0)?,
            insert_start,
            insert_count,
            field_count: p.parse("fieldcount", 10)?,
            field_length: p.parse("fieldlength", 100)?,
            min_field_length: p.parse("minfieldlength", 1)?,
            field_length_distribution: length(p, "fieldlengthdistribution")?,
            field_lengths: Arc::default(),
            field_prefix: p.get("fieldnameprefix").unwrap_or("field").to_string(),
            read_all_fields: p.flag("readallfields", true),
            write_all_fields: p.flag("writeallfields", false),
            data_integrity: p.flag("dataintegrity", false),
            read: p.parse("readproportion", 0.95)?,
            update: p.parse("updateproportion", 0.05)?,
            insert: p.parse("insertproportion", 0.0)?,
            scan: p.parse("scanproportion", 0.0)?,
            read_modify_write: p.parse("readmodifywriteproportion", 0.0)?,
            delete: p.parse("deleteproportion", 0.0)?,
            request: request(p)?,
            min_scan_length: p.parse("minscanlength", 1)?,
            max_scan_length: p.parse("maxscanlength", 1000)?,
            scan_length_distribution: match p.get("scanlengthdistribution") {
                None => Length::Uniform,
                Some(_) => length(p, "scanlengthdistribution")?,
            },
            ordered_inserts: p.get("insertorder").unwrap_or("hashed") != "hashed",
            zero_padding: p.parse("zeropadding", 1)?,
            hotspot_data: p.parse("hotspotdatafraction", 0.2)?,
            hotspot_operations: p.parse("hotspotopnfraction", 0.8)?,
            exponential_percentile: p.parse("exponential.percentile", 95.0)?,
            exponential_fraction: p.parse("exponential.frac", 0.857_142_857_1)?,
            batch: p.parse("mongodb.batchsize", p.parse("batchsize", 1)?)?,
            upsert: p.flag("mongodb.upsert", false),
        };
        if spec.field_length_distribution == Length::Histogram {
            spec.take_lengths(p)?;
        }
        spec.check()?;
        Ok((spec, warnings(p)))
    }

    /// The lengths of fields from a file.
    fn take_lengths(&mut self, p: &Properties) -> Result<()> {
        let file = p.get("fieldlengthhistogram").unwrap_or("hist.txt");
        let text = std::fs::read_to_string(file).map_err(local(file))?;
        let buckets = Buckets::parse(&text)
            .ok_or_else(|| Fault::Usage(format!("{file}: not a histogram of lengths")))?;
        self.field_length = buckets.longest();
        self.min_field_length = 0;
        self.field_lengths = Arc::new(buckets);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let wrong = |why: &str| Err(Fault::Usage(why.into()));
        let parts = self.proportions();
        if parts.iter().any(|p| !p.is_finite() || *p < 0.0) || parts.iter().sum::<f64>() <= 0.0 {
            return wrong("the proportions of operations must be positive in sum, none negative");
        }
        if self.records == 0 {
            return wrong("recordcount must be set (or --records given)");
        }
        if self.insert_start.saturating_add(self.insert_count) > self.records {
            return wrong("insertstart + insertcount is more than recordcount");
        }
        if self.field_count == 0 || self.field_length == 0 || self.batch == 0 {
            return wrong("fieldcount, fieldlength and batchsize must be at least 1");
        }
        if self.field_count as u64 * (self.field_length + 32) > 16_000_000 {
            return wrong("a record would exceed 16 MB");
        }
        if self.min_field_length > self.field_length || self.min_scan_length > self.max_scan_length
        {
            return wrong("a minimum length is above its maximum");
        }
        if self.data_integrity && self.field_length_distribution != Length::Constant {
            return wrong("dataintegrity needs fieldlengthdistribution=constant");
        }
        if self.zero_padding > 100 {
            return wrong("zeropadding is at most 100");
        }
        if self.upsert {
            return wrong("mongodb.upsert=true is not supported");
        }
        Ok(())
    }

    /// In the order of [`super::client::OPERATIONS`].
    pub fn proportions(&self) -> [f64; 6] {
        [
            self.read,
            self.update,
            self.insert,
            self.scan,
            self.read_modify_write,
            self.delete,
        ]
    }

    /// Whether the run phase changes records or makes some.
    pub fn writes(&self) -> bool {
        let [_, update, insert, _, rmw, delete] = self.proportions();
        update + insert + rmw + delete > 0.0
    }

    /// Whether the run phase only inserts: then it starts with an empty collection.
    pub fn only_inserts(&self) -> bool {
        let [read, update, insert, scan, rmw, delete] = self.proportions();
        insert > 0.0 && read + update + scan + rmw + delete == 0.0
    }

    /// The chooser of lane `lane` of `lanes`, over the records counted from `insert_start`.
    pub fn chooser(&self, lane: u64, lanes: u64) -> Chooser {
        let n = self.insert_count;
        match self.request {
            RequestDistribution::Uniform => Chooser::uniform(n),
            RequestDistribution::Zipfian => {
                // YCSB makes room for twice the inserts that it expects, and one more.
                let fresh = (self.operations as f64 * self.insert * 2.0) as u64;
                Chooser::scrambled(n + fresh + 1)
            }
            RequestDistribution::ZipfianExact => Chooser::exact(n),
            RequestDistribution::Latest => Chooser::latest(n),
            RequestDistribution::Hotspot => {
                Chooser::hotspot(n, self.hotspot_data, self.hotspot_operations)
            }
            RequestDistribution::Sequential => Chooser::sequential(n, lane, lanes),
            RequestDistribution::Exponential => Chooser::exponential(
                self.exponential_percentile,
                self.records as f64 * self.exponential_fraction,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ycsb::scenario;

    fn spec(text: &str) -> Result<(Spec, Vec<String>)> {
        let mut p = Properties::default();
        p.add_text(text)?;
        Spec::new(&p)
    }

    #[test]
    fn every_scenario_is_sound_and_without_warnings() {
        for (name, _, text) in scenario::ALL {
            let (s, warnings) = spec(text).unwrap();
            assert!(warnings.is_empty(), "{name}: {warnings:?}");
            assert!((s.proportions().iter().sum::<f64>() - 1.0).abs() < 1e-9);
            assert_eq!(s.only_inserts(), *name == "C.S1");
            assert_eq!((s.field_count, s.field_length), (10, 100));
        }
        assert!(scenario::find("c.s3").is_some() && scenario::find("C.S9").is_none());
    }

    /// The properties of YCSB 0.17's CoreWorkload, Client and Measurements.
    #[test]
    fn all_core_properties_are_known_and_heeded() {
        let text = "workload=site.ycsb.workloads.CoreWorkload\ndb=x\nexporter=x\nexportfile=x\nthreadcount=3\n\
            recordcount=1000\noperationcount=500\ninsertstart=100\ninsertcount=800\ntarget=50\nmaxexecutiontime=60\n\
            label=x\nstatus.interval=5\ntable=t\nfieldcount=4\nfieldnameprefix=f\nfieldlength=40\nminfieldlength=5\n\
            fieldlengthdistribution=zipfian\nfieldlengthhistogram=hist.txt\nreadallfields=false\n\
            readallfieldsbyname=false\nwriteallfields=true\ndataintegrity=false\nreadproportion=0.1\n\
            updateproportion=0.2\ninsertproportion=0.3\nscanproportion=0.25\nreadmodifywriteproportion=0.15\n\
            requestdistribution=hotspot\nminscanlength=2\nmaxscanlength=20\nscanlengthdistribution=zipfian\n\
            insertorder=ordered\nzeropadding=8\nhotspotdatafraction=0.3\nhotspotopnfraction=0.7\n\
            exponential.percentile=90\nexponential.frac=0.5\ncore_workload_insertion_retry_limit=0\n\
            core_workload_insertion_retry_interval=3\nmeasurementtype=timeseries\ntimeseries.granularity=1000\n\
            histogram.buckets=100\nmeasurement.interval=both\nmeasurement.histogram.verbose=true\n\
            hdrhistogram.percentiles=50,99\nhdrhistogram.fileoutput=false\nhdrhistogram.output.path=x\n\
            measurement.raw.output_file=x\nreportlatencyforeacherror=false\nlatencytrackederrors=x";
        let (s, warnings) = spec(text).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        let named =
            spec("recordcount=1\nhdrhistogram.fileoutput=true\nmongodb.readPreference=nearest");
        assert_eq!(named.unwrap().1.len(), 2);
        assert_eq!((s.records, s.operations), (1000, 500));
        assert_eq!((s.insert_start, s.insert_count), (100, 800));
        assert_eq!((s.table.as_str(), s.field_prefix.as_str()), ("t", "f"));
        assert_eq!((s.field_count, s.field_length), (4, 40));
        assert_eq!(s.min_field_length, 5);
        assert_eq!(s.field_length_distribution, Length::Zipfian);
        assert!(!s.read_all_fields && s.write_all_fields && !s.data_integrity);
        assert_eq!(s.proportions(), [0.1, 0.2, 0.3, 0.25, 0.15, 0.0]);
        assert_eq!(s.request, RequestDistribution::Hotspot);
        assert_eq!((s.min_scan_length, s.max_scan_length), (2, 20));
        assert_eq!(s.scan_length_distribution, Length::Zipfian);
        assert!(s.ordered_inserts && s.zero_padding == 8);
        assert_eq!((s.hotspot_data, s.hotspot_operations), (0.3, 0.7));
        assert_eq!(
            (s.exponential_percentile, s.exponential_fraction),
            (90.0, 0.5)
        );
    }

    #[test]
    fn lengths_of_a_histogram() {
        let b = Buckets::parse("BlockSize\t10\n0\t1\n1\t2\n2\t1\n").unwrap();
        assert_eq!(
            [0.0, 0.3, 0.5, 0.74, 0.99].map(|u| b.at(u)),
            [10, 10, 20, 20, 20]
        );
        assert_eq!(b.longest(), 30);
        for bad in [
            "",
            "BlockSize\tx",
            "BlockSize\t10\n",
            "BlockSize\t10\n1\t1\n",
            "0\t1",
        ] {
            assert!(Buckets::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn defaults_warnings_and_refusals() {
        let (s, warnings) = spec("recordcount=10\nnonsense=1\ntarget=5\nthreadcount=3").unwrap();
        assert_eq!((s.read, s.update), (0.95, 0.05));
        assert_eq!(warnings, ["property nonsense is not known"]);
        for bad in [
            "",
            "recordcount=x",
            "recordcount=10\nworkload=my.Own",
            "recordcount=10\nrequestdistribution=pareto",
            "recordcount=10\nreadproportion=0\nupdateproportion=0",
            "recordcount=10\nreadproportion=-1",
            "recordcount=10\ninsertstart=5\ninsertcount=6",
            "recordcount=10\nfieldlengthdistribution=pareto",
            "recordcount=10\nscanlengthdistribution=histogram",
            "recordcount=10\nfieldlength=20000000",
        ] {
            assert!(matches!(spec(bad), Err(Fault::Usage(_))), "{bad}");
        }
    }
}
