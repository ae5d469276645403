//! `$geoNear`: the documents of a collection by their distance from a point.
//!
//! The search is the query's that the pipeline begins with ([`GeoNear::filter`]); the stage itself adds the distance and the
//! nearest shape to each document. Which field is searched may be for the collection's indexes to say, and the point for
//! variables: until then the stage is unresolved ([`GeoNear::resolve`]).
//!
//! Later stages that ask for `$meta: "geoNearDistance"` or `"geoNearPoint"` find them in fields of these names behind a
//! dollar, which no stored document has at its top; they are taken off at the end ([`StripFields`]).

use super::options::field_path;
use super::parse::parse_match;
use super::{IdleVisitor, PipelineHost, Source};
use crate::expr::{EvalCtx, Expression, ParseEnv, Vars};
use crate::filter::{Filter, NearTest, Node, Test, nearest};
use crate::metadata::Metadata;
use crate::path::FieldPath;
use bson::{Doc, Val, Value, Writer, tag};
use errors::{Error, Result, bail};
use std::sync::Arc;

/// Where later stages find the distance and the shape.
pub(crate) const DISTANCE: &str = "$geoNearDistance";
pub(crate) const POINT: &str = "$geoNearPoint";

#[derive(Clone, Debug)]
pub struct GeoNear {
    near: Expression,
    min: Option<Expression>,
    max: Option<Expression>,
    distance_field: Option<FieldPath>,
    include_locs: Option<FieldPath>,
    multiplier: Option<f64>,
    spherical: bool,
    /// The field that is searched, if it was named.
    pub key: Option<FieldPath>,
    query: Filter,
    /// A later stage asks for metadata.
    pub(crate) meta: bool,
    resolved: Option<(FieldPath, Arc<NearTest>)>,
}

fn name_of<'a>(e: bson::Elem<'a>, code: i32) -> Result<&'a str> {
    match e.val.as_str() {
        Some(s) => Ok(s),
        None => Err(Error::coded(
            code,
            format!(
                "$geoNear requires that the '{}' option is a string, but found {}",
                e.name,
                e.val.type_name()
            ),
        )
        .into()),
    }
}

/// An expression that reads no field.
fn constant(e: bson::Elem<'_>, env: &ParseEnv, code: i32) -> Result<Expression> {
    let expression = Expression::parse(e.val, env)?;
    if expression.needed_paths().is_none_or(|p| !p.is_empty()) {
        return Err(Error::coded(
            code,
            format!("$geoNear requires a constant {} argument", e.name),
        )
        .into());
    }
    Ok(expression)
}

fn multiplier(v: Val<'_>) -> Result<f64> {
    let Some(n) = v.to_f64().filter(|_| v.is_number()) else {
        bail!(
            TypeMismatch,
            "$geoNear distanceMultiplier must be a number, but found {}",
            v.type_name()
        );
    };
    if n.is_nan() || n < 0.0 {
        bail!(BadValue, "$geoNear distanceMultiplier must be nonnegative");
    }
    Ok(n)
}

fn key(e: bson::Elem<'_>) -> Result<FieldPath> {
    let Some(s) = e.val.as_str() else {
        bail!(
            TypeMismatch,
            "$geoNear parameter 'key' must be of type string but found type: {}",
            e.val.type_name()
        );
    };
    if s.is_empty() {
        bail!(
            BadValue,
            "$geoNear parameter 'key' cannot be the empty string"
        );
    }
    if (bson::MAX_DEPTH + 1..MAX_PATH).contains(&s.split('.').count()) {
        bail!(5729100, "a path of $geoNear has too many components");
    }
    path(s, 5729100)
}

/// The most components of a path, as in MongoDB.
const MAX_PATH: usize = 200;

fn path(s: &str, too_deep: i32) -> Result<FieldPath> {
    match s.split('.').count() {
        n if n > MAX_PATH => bail!(
            Overflow,
            "FieldPath is too long: {n} components, at most {MAX_PATH}"
        ),
        MAX_PATH => {
            Err(Error::coded(too_deep, "a path of $geoNear has too many components").into())
        }
        _ => field_path(s),
    }
}

impl GeoNear {
    pub(super) fn parse(spec: Val<'_>, env: &ParseEnv) -> Result<GeoNear> {
        let Some(d) = spec.as_container() else {
            bail!(10065, "invalid parameter: expected an object ($geoNear)");
        };
        let mut near = None;
        let mut out = GeoNear {
            near: Expression::parse(Val::NULL, env)?,
            min: None,
            max: None,
            distance_field: None,
            include_locs: None,
            multiplier: None,
            spherical: false,
            key: None,
            query: Filter::all(),
            meta: false,
            resolved: None,
        };
        for e in d.iter().filter(|_| spec.tag != tag::ARRAY) {
            match e.name {
                "near" => near = Some(constant(e, env, 5860402)?),
                "distanceField" => out.distance_field = Some(path(name_of(e, 16606)?, 5984700)?),
                "includeLocs" => out.include_locs = Some(path(name_of(e, 16607)?, 5984700)?),
                "minDistance" => out.min = Some(constant(e, env, 7555701)?),
                "maxDistance" => out.max = Some(constant(e, env, 7555702)?),
                "distanceMultiplier" => out.multiplier = Some(multiplier(e.val)?),
                "spherical" => out.spherical = e.val.truthy(),
                "key" => out.key = Some(key(e)?),
                "query" => out.query = query(e.val, env)?,
                "uniqueDocs" => {}
                "limit" | "num" => bail!(
                    50858,
                    "$geoNear no longer supports the '{}' parameter. Use a $limit stage instead.",
                    e.name
                ),
                "start" => bail!(50856, "$geoNear no longer supports the 'start' parameter."),
                name => bail!(BadValue, "Unknown argument to $geoNear: {name}"),
            }
        }
        let Some(near) = near else {
            bail!(5860400, "$geoNear requires a 'near' argument");
        };
        out.near = near;
        Ok(out)
    }

    /// The stage with its point and field. `key`: what the collection's indexes say, where the stage does not.
    pub fn resolve(&self, key: FieldPath, vars: &Vars) -> Result<GeoNear> {
        let value = |e: &Expression| {
            let v = e.evaluate(&EvalCtx::new(Doc::EMPTY, vars))?;
            Ok::<_, errors::Stop>(v.as_val().map_or(Value::NULL, |v| v.to_value()))
        };
        let near = value(&self.near)?;
        let near = near.as_val();
        if near.as_container().is_none() {
            bail!(
                5860401,
                "$geoNear requires near argument to be either a GeoJSON point or a legacy point, but found {}",
                near.type_name()
            );
        }
        let mut limits = Vec::new();
        for (name, e) in [("minDistance", &self.min), ("maxDistance", &self.max)] {
            if let Some(e) = e {
                limits.push((name, limit(name, value(e)?.as_val())?));
            }
        }
        let operator = match self.spherical {
            true => "$nearSphere",
            false => "$near",
        };
        let legacy = geo::Location::parse(near).is_ok_and(|p| !p.is_geojson);
        let mut w = Writer::new();
        match legacy {
            true => {
                w.val(operator, near);
            }
            false => {
                w.open_doc(operator).val("$geometry", near);
            }
        }
        // Endless limits are none, or leave nothing: no query can say so.
        for (name, n) in limits.iter().filter(|(_, n)| n.is_finite()) {
            w.f64(&format!("${name}"), *n);
        }
        if !legacy {
            w.close();
        }
        let mut test = NearTest::parse(w.finish().as_doc())?;
        if limits.contains(&("minDistance", f64::INFINITY)) {
            test.near.min = f64::INFINITY;
        }
        Ok(GeoNear {
            resolved: Some((key, Arc::new(test))),
            ..self.clone()
        })
    }

    /// What the query looks for that stands for the stage.
    pub(super) fn filter(&self) -> Filter {
        let mut all = Vec::new();
        if let Some((path, test)) = &self.resolved {
            all.push(Node::Pred {
                path: path.clone(),
                test: Test::Near(test.clone()),
            });
        }
        all.push(self.query.root().clone());
        Filter::from_node(Node::and(all))
    }

    /// Appends the document with what the stage adds.
    fn add(&self, doc: Doc<'_>, out: &mut Vec<u8>) {
        let found = self.resolved.as_ref();
        let found = found.and_then(|(path, test)| nearest(path, &test.near, doc));
        let Some((distance, shape)) = found else {
            out.extend_from_slice(doc.as_bytes());
            return;
        };
        let distance = distance * self.multiplier.unwrap_or(1.0);
        let distance = Value::from(distance);
        let mut w = Writer::on(std::mem::take(out));
        let both = [
            (&self.distance_field, distance.as_val()),
            (&self.include_locs, shape),
        ];
        let set: Vec<(&FieldPath, Val<'_>)> = both
            .iter()
            .filter_map(|(p, v)| Some((p.as_ref()?, *v)))
            .collect();
        match &set[..] {
            [] => {
                w.extend(doc);
            }
            [(p, v)] => write_with(&mut w, doc, p, 0, *v),
            [(p, v), (q, u), ..] => {
                let mut first = Writer::new();
                write_with(&mut first, doc, p, 0, *v);
                write_with(&mut w, first.finish().as_doc(), q, 0, *u);
            }
        }
        if self.meta {
            w.val(DISTANCE, distance.as_val()).val(POINT, shape);
        }
        *out = w.finish_into();
    }
}

fn limit(name: &str, v: Val<'_>) -> Result<f64> {
    let Some(n) = v.to_f64().filter(|_| v.is_number()) else {
        bail!(
            TypeMismatch,
            "$geoNear {name} must be a number, but found {}",
            v.type_name()
        );
    };
    if n.is_nan() || n < 0.0 {
        bail!(BadValue, "$geoNear {name} must be nonnegative");
    }
    Ok(n)
}

/// What documents have to match beside being near.
fn query(v: Val<'_>, env: &ParseEnv) -> Result<Filter> {
    let Some(d) = v.as_doc() else {
        bail!(
            TypeMismatch,
            "$geoNear parameter 'query' must be an object, but found {}",
            v.type_name()
        );
    };
    if d.contains("$text") {
        bail!(BadValue, "$text is not allowed inside of a $geoNear query");
    }
    parse_match(v, env)
}

/// A document with a value on a path. Any other value on the way gives way to a document.
fn write_with(w: &mut Writer, doc: Doc<'_>, path: &FieldPath, at: usize, v: Val<'_>) {
    let name = path.part(at);
    let last = at + 1 >= path.len();
    let mut there = false;
    let put = |w: &mut Writer, old: Doc<'_>| {
        if last {
            w.val(name, v);
        } else {
            w.open_doc(name);
            write_with(w, old, path, at + 1, v);
            w.close();
        }
    };
    for e in doc {
        if e.name == name {
            there = true;
            put(w, e.val.as_doc().unwrap_or(Doc::EMPTY));
        } else {
            w.val(e.name, e.val);
        }
    }
    if !there {
        put(w, Doc::EMPTY);
    }
}

pub(super) struct Run {
    input: Box<dyn Source>,
    stage: Arc<GeoNear>,
    out: Vec<u8>,
}

impl Run {
    pub fn new(input: Box<dyn Source>, stage: Arc<GeoNear>) -> Run {
        Run {
            input,
            stage,
            out: Vec::new(),
        }
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if !self.input.advance(host)? {
            return Ok(false);
        }
        self.out.clear();
        self.stage.add(self.input.doc(), &mut self.out);
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(false, to)?;
        to.doc(&mut self.out, wanted)
    }
}

/// Takes off fields that were only for later stages.
pub(super) struct StripFields {
    input: Box<dyn Source>,
    out: Vec<u8>,
}

impl StripFields {
    pub fn new(input: Box<dyn Source>) -> StripFields {
        StripFields {
            input,
            out: Vec::new(),
        }
    }
}

impl Source for StripFields {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if !self.input.advance(host)? {
            return Ok(false);
        }
        self.out = without_meta(self.input.doc());
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }

    fn meta(&self) -> &Metadata {
        self.input.meta()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(false, to)?;
        to.doc(&mut self.out, wanted)
    }
}

/// A document with the metadata that expressions read.
pub fn with_meta(doc: Doc<'_>, distance: f64, shape: Val<'_>) -> Vec<u8> {
    let mut w = Writer::with_capacity(doc.len() + 64);
    w.extend(doc).f64(DISTANCE, distance).val(POINT, shape);
    w.finish().into_vec()
}

/// The document without it.
pub fn without_meta(doc: Doc<'_>) -> Vec<u8> {
    let mut w = Writer::with_capacity(doc.len());
    for e in doc.iter().filter(|e| !matches!(e.name, DISTANCE | POINT)) {
        w.val(e.name, e.val);
    }
    w.finish().into_vec()
}
