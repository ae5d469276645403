//! A projection that the router makes, behind its merge.

use bson::{Doc, DocBuf};
use cluster_view::Outcome;
use query::collation::Collation;
use query::expr::{EvalCtx, Expression, ParseEnv, Vars};
use query::filter::{Filter, nearest};
use query::pipeline::geo_near;
use query::projection::Projection;

/// What a find's filter may hold.
pub(crate) fn env() -> ParseEnv {
    ParseEnv::new().allow_where(true).allow_text(true)
}

/// A projection that the router makes, behind its merge.
pub(crate) struct PostMergeProjection {
    projection: Projection,
    filter: Filter,
    vars: Vars,
}

impl PostMergeProjection {
    pub fn parse(
        projection: Doc<'_>,
        filter: Doc<'_>,
        collation: Option<Collation>,
        variables: Option<Doc<'_>>,
    ) -> Outcome<PostMergeProjection> {
        let mut env = env().collated(collation);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let mut vars = Vars::new(now.map_or(0, |d| d.as_millis() as i64));
        for e in variables.unwrap_or(Doc::EMPTY) {
            // The shards report what is invalid in it.
            let value = Expression::parse(e.val, &env)?;
            let value = value.evaluate(&EvalCtx::new(Doc::EMPTY, &vars))?;
            let value = value.into_value();
            vars.define(e.name, value);
            env.define(e.name)?;
        }
        let filter = Filter::parse(filter, &env)?;
        Ok(PostMergeProjection {
            projection: Projection::parse(projection, Some(&filter), &env)?,
            filter,
            vars,
        })
    }

    pub fn apply(&self, d: Doc<'_>) -> Outcome<DocBuf> {
        let vars = &self.vars;
        let matched = match self.projection.needs_match_index() {
            true => self.filter.first_matched_index(d, vars)?.flatten(),
            false => None,
        };
        let mut out = Vec::new();
        let near = self.filter.near().filter(|_| self.projection.reads_near());
        match near.and_then(|(path, test)| nearest(path, &test.near, d)) {
            None => self.projection.apply(d, matched, vars, &mut out)?,
            Some((distance, shape)) => {
                let known = geo_near::with_meta(d, distance, shape);
                let known = Doc::new(&known).unwrap_or(Doc::EMPTY);
                self.projection.apply(known, matched, vars, &mut out)?;
                out = geo_near::without_meta(Doc::new(&out).unwrap_or(Doc::EMPTY));
            }
        }
        Ok(DocBuf::from_vec(out).unwrap_or_default())
    }
}
