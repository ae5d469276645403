//! A pipeline as far as the router reads it: in the order in which it runs, and the fields that its
//! stages need.

use bson::{Doc, DocBuf, Val, Value, Writer};
use query::collation::Collation;
use query::expr::ParseEnv;
use query::pipeline::{ParseCtx, Pipeline};

/// The longest pipeline that is parsed for the sake of how it is divided.
const MOST_BYTES_PARSED: usize = 64 << 10;

/// What the stages of a pipeline mean.
#[derive(Clone)]
pub(crate) struct PipelineContext<'a> {
    pub db: &'a str,
    pub collection: Option<&'a str>,
    /// What holds for the whole pipeline.
    pub collation: Option<Collation>,
    /// Names of variables.
    pub variables: Doc<'a>,
}

impl PipelineContext<'_> {
    /// `None` if it is too long or invalid: then its shards report the error.
    pub fn parsed(&self, stages: Doc<'_>) -> Option<Pipeline> {
        if stages.len() > MOST_BYTES_PARSED {
            return None;
        }
        let mut env = ParseEnv::new().collated(self.collation.clone());
        for e in self.variables {
            env.define(e.name).ok()?;
        }
        let context = ParseCtx::new(self.db, self.collection, env);
        Pipeline::parse(stages.as_array_val(), &context).ok()
    }

    /// The stages in the order in which they run, where a shard can be asked for them.
    pub fn in_order(&self, stages: Doc<'_>) -> Option<Value> {
        let list = list(self.parsed(stages)?.optimized().written());
        // A filter as the optimizer leaves it may be none that a client can write.
        self.parsed(list.as_val().as_array()?)?;
        Some(list)
    }

    /// The top fields that stages read of what comes to them; `None`: all of it.
    pub fn needed(&self, stages: &[Val<'_>]) -> Option<Vec<String>> {
        let stages = list(stages);
        let pipeline = self.parsed(stages.as_val().as_array()?)?;
        let fields = pipeline.optimized().needed_fields()?;
        let plain = |f: &String| !f.is_empty() && !f.starts_with('$');
        fields
            .iter()
            .all(plain)
            .then(|| fields.into_iter().collect())
    }
}

/// What has the bytes of a stage.
pub(crate) trait AsStage {
    fn val(&self) -> Val<'_>;
}

impl AsStage for Val<'_> {
    fn val(&self) -> Val<'_> {
        *self
    }
}

impl AsStage for DocBuf {
    fn val(&self) -> Val<'_> {
        self.as_doc().as_val()
    }
}

impl AsStage for Value {
    fn val(&self) -> Val<'_> {
        self.as_val()
    }
}

impl<S: AsStage> AsStage for &S {
    fn val(&self) -> Val<'_> {
        (**self).val()
    }
}

/// Stages as an array.
pub(crate) fn list<S: AsStage>(stages: impl IntoIterator<Item = S>) -> Value {
    let mut w = Writer::new_array();
    for stage in stages {
        w.push(stage.val());
    }
    w.finish_array()
}
