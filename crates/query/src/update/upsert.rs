//! The document that an upsert starts from: what the query says its fields equal.

use crate::filter::Filter;
use crate::path::FieldPath;
use bson::{DocBuf, Val, Writer};
use errors::{Result, bail};

/// The document made of the query's equalities, in order of their paths. For a replacement only
/// `_id` counts.
pub fn base(filter: &Filter, replacement: bool) -> Result<DocBuf> {
    let mut fields = filter.equalities()?;
    if replacement {
        fields.retain(|(p, _)| p.first() == "_id");
        if let Some((p, _)) = fields.iter().find(|(p, _)| p.is_dotted()) {
            bail!(
                NotSingleValueField,
                "field at '_id' must be exactly specified, field at sub-path '{p}'found"
            );
        }
    }
    // A path may be as long as a command.
    if fields.iter().any(|(p, _)| p.len() > bson::MAX_DEPTH + 1) {
        return Err(super::tree::too_deep().into());
    }
    fields.sort_by(|a, b| a.0.parts().cmp(b.0.parts()));
    let mut w = Writer::new();
    // `_id` leads; a stable sort keeps the rest in order.
    fields.sort_by_key(|(p, _)| p.first() != "_id");
    write(&mut w, &fields, 0);
    Ok(w.finish())
}

/// Writes the fields whose paths agree in their first `depth` components; neighbours share
/// containers.
fn write(w: &mut Writer, fields: &[(&FieldPath, Val<'_>)], depth: usize) {
    let mut rest = fields;
    while let Some(((path, v), _)) = rest.split_first() {
        let name = path.part(depth);
        let n = rest
            .iter()
            .take_while(|(p, _)| p.part(depth) == name)
            .count();
        if path.len() == depth + 1 {
            w.val(name, *v);
        } else {
            w.open_doc(name);
            write(w, &rest[..n], depth + 1);
            w.close();
        }
        rest = &rest[n..];
    }
}
