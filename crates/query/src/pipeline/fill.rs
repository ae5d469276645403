//! `$fill`: a null or missing value becomes a constant expression, the last value, or one between its
//! neighbours. It stands for `$setWindowFields` and `$addFields`.

use super::options::{object, options, required};
use super::parse::ParseCtx;
use super::window::Window;
use super::{Op, Stage};
use crate::expr::ParseEnv;
use crate::transform::Transform;
use bson::{Doc, DocBuf, Val, Writer, tag};
use errors::{Result, bail};
use std::sync::Arc;

const STAGE: &str = "$fill";

/// Whether all outputs are given by values: then it changes documents one by one.
pub(super) fn only_values(spec: Val<'_>) -> bool {
    spec.as_doc()
        .filter(|d| !d.contains("partitionBy") && !d.contains("partitionByFields"))
        .and_then(|d| d.get("output"))
        .and_then(|o| o.as_doc())
        .is_some_and(|o| {
            o.iter().all(|e| {
                e.val
                    .as_doc()
                    .is_some_and(|f| f.count() == 1 && f.contains("value"))
            })
        })
}

/// The transformation of [`only_values`].
pub(super) fn values(spec: Val<'_>, env: &ParseEnv) -> Result<Transform> {
    let output = spec
        .as_doc()
        .and_then(|d| d.get("output"))
        .and_then(|o| o.as_doc())
        .unwrap_or(Doc::EMPTY);
    Transform::add_fields("$addFields", if_null(output).as_doc(), env)
}

/// `{field: {$ifNull: ["$field", value]}, …}` of the outputs with values.
fn if_null(output: Doc<'_>) -> DocBuf {
    let mut w = Writer::new();
    for e in output.iter() {
        if let Some(v) = e.val.as_doc().and_then(|d| d.get("value")) {
            w.open_doc(e.name)
                .open_array("$ifNull")
                .push_value(format!("${}", e.name))
                .push(v);
            w.close().close();
        }
    }
    w.finish()
}

/// The `partitionBy` of the window.
fn partition_by(w: &mut Writer, partition: Option<Val<'_>>, fields: Option<Val<'_>>) -> Result<()> {
    match (partition, fields) {
        (Some(p), _) => {
            w.val("partitionBy", p);
        }
        (None, Some(list)) => {
            let Some(list) = list.as_array() else {
                bail!(
                    TypeMismatch,
                    "'partitionByFields' must be an array of strings"
                );
            };
            w.open_doc("partitionBy");
            for v in list.values() {
                match v.as_str() {
                    Some(f) if !f.starts_with('$') => {
                        w.value(f, format!("${f}"));
                    }
                    _ => bail!(
                        6050205,
                        "Each partition field must be a string without '$', found {v}"
                    ),
                }
            }
            w.close();
        }
        _ => {}
    }
    Ok(())
}

/// The `output` of the window: the fields that a method fills. Says whether there are any.
fn methods(w: &mut Writer, output: Doc<'_>, sorted: bool) -> Result<bool> {
    w.open_doc("output");
    let mut any = false;
    for e in output.iter() {
        let Some(f) = e.val.as_doc() else {
            bail!(
                TypeMismatch,
                "{STAGE} expects an object for each output field, found {}",
                e.val.type_name()
            );
        };
        match (f.first(), f.count()) {
            (Some(m), 1) if m.name == "value" => {}
            (Some(m), 1) if m.name == "method" => {
                let function = match m.val.as_str() {
                    Some("linear") => "$linearFill",
                    Some("locf") => "$locf",
                    _ => bail!(
                        6050202,
                        "Method must be either locf or linear, found {}",
                        m.val
                    ),
                };
                if !sorted && function == "$linearFill" {
                    bail!(6050201, "'{STAGE}' with a method needs 'sortBy'");
                }
                w.open_doc(e.name)
                    .value(function, format!("${}", e.name))
                    .close();
                any = true;
            }
            _ => bail!(
                6050200,
                "Fill must provide either 'method' or 'value' for each output field"
            ),
        }
    }
    w.close();
    Ok(any)
}

pub(super) fn parse(spec: Val<'_>, ctx: &ParseCtx) -> Result<Vec<Stage>> {
    let Some(d) = spec.as_doc() else {
        bail!(
            FailedToParse,
            "the {STAGE} stage specification must be an object, found {}",
            spec.type_name()
        );
    };
    let [partition, fields, sort, output] = options(
        STAGE,
        d,
        ["partitionBy", "partitionByFields", "sortBy", "output"],
    )?;
    let output = object(STAGE, "output", required(STAGE, "output", output)?)?;
    if output.is_empty() {
        bail!(6050203, "{STAGE} requires at least one output field");
    }
    if partition.is_some() && fields.is_some() {
        bail!(
            6050204,
            "Maximum one of 'partitionBy' and 'partitionByFields can be specified in '{STAGE}'"
        );
    }
    let mut window = Writer::new();
    partition_by(&mut window, partition, fields)?;
    if let Some(s) = sort {
        window.doc("sortBy", object(STAGE, "sortBy", s)?);
    }
    let methods = methods(&mut window, output, sort.is_some())?;
    let mut out = Vec::new();
    if methods {
        let window = window.finish();
        let v = window.as_doc().as_val();
        out.push(Stage::new(
            "$setWindowFields",
            v,
            Op::Window(Arc::new(Window::parse(v, &ctx.env)?)),
        ));
    }
    let add = if_null(output);
    if !add.as_doc().is_empty() {
        let t = Transform::add_fields("$addFields", add.as_doc(), &ctx.env)?;
        out.push(Stage::new(
            "$addFields",
            add.as_doc().as_val(),
            Op::Transform(Arc::new(t)),
        ));
    }
    debug_assert!(out.iter().all(|s| s.spec.tag() == tag::DOCUMENT));
    Ok(out)
}
