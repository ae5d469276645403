//! Tables on the page. At a phone's width a row is folded: its first cell is a heading, the others stand under each other
//! with the names of their columns.

use super::plot::escape;
use crate::lang::tr;
use crate::sheet::{ColumnKind, Sheet};
use std::fmt::Write as _;

/// Nothing of a table without rows.
pub(super) fn table(h: &mut String, sheet: &Sheet) {
    if sheet.rows.is_empty() {
        return;
    }
    let open = if sheet.open { " open" } else { "" };
    let _ = write!(
        h,
        "<details class=\"sheet\"{open}><summary>{} ({})</summary>",
        escape(&sheet.title),
        sheet.rows.len()
    );
    let used = sheet.used();
    tools(h, sheet.rows.len());
    h.push_str("<div class=\"scroll\"><table><thead><tr>");
    let class = |i: usize| match sheet.columns[i].kind {
        ColumnKind::Label | ColumnKind::Words => " class=\"words\"",
        _ => "",
    };
    for &i in &used {
        let head = escape(&sheet.columns[i].head);
        let _ = write!(h, "<th{}>{head}</th>", class(i));
    }
    h.push_str("</tr></thead><tbody>");
    for row in 0..sheet.rows.len() {
        h.push_str("<tr>");
        for &i in &used {
            // A cell knows its column, for where columns are not drawn.
            let head = escape(&sheet.columns[i].head);
            let text = escape(sheet.cell(row, i));
            let _ = write!(h, "<td data-h=\"{head}\"{}>{text}</td>", class(i));
        }
        h.push_str("</tr>");
    }
    h.push_str("</tbody></table></div></details>");
}

/// What filters and, where heads are not drawn, sorts a table; a few rows need neither.
fn tools(h: &mut String, rows: usize) {
    if rows > 4 {
        let (with, by) = (tr("rows with …"), tr("sort by"));
        let _ = write!(
            h,
            "<p class=\"tools\"><input type=\"search\" placeholder=\"{with}\" aria-label=\"{with}\">\
             <select aria-label=\"{by}\"><option value=\"\">{by}</option></select><output></output></p>",
        );
    }
}
