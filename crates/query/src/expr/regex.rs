//! `$regexFind $regexFindAll $regexMatch`.

use super::boolean::boolean;
use super::node::{Call, Computed, EvalCtx, own};
use super::table::{Named, Op};
use bson::{Val, Value, Writer, tag};
use errors::{Result, Stop, bail, err};
use pcre::{MatchFailure, Regex};
use std::cell::Cell;
use std::sync::Arc;

pub(super) const OPS: &[Op] = &[
    Op::named("$regexFind", &REGEX, |c, x| find(c, x, RegexResult::First)).prepared(prepare),
    Op::named("$regexFindAll", &REGEX, |c, x| find(c, x, RegexResult::All)).prepared(prepare),
    Op::named("$regexMatch", &REGEX, |c, x| {
        find(c, x, RegexResult::Whether)
    })
    .prepared(prepare),
];

static REGEX: Named = Named {
    fields: &[("input", 31022), ("regex", 31023), ("options", 0)],
    not_object: 51103,
    unknown: 31024,
};

/// A pattern compiled ahead because it is constant.
#[derive(Clone, Debug)]
pub(crate) struct Prepared(Arc<Regex>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum RegexResult {
    First,
    All,
    Whether,
}

fn prepare(c: &mut Call) -> Result<()> {
    use super::Node;
    let known = |i: usize| {
        c.args
            .get(i)
            .is_none_or(|n| matches!(n, Node::Const(_) | Node::Absent))
    };
    if !known(1) || !known(2) {
        return Ok(());
    }
    let (pattern, options) = (
        c.args[1].constant().unwrap_or(Val::NULL),
        c.args[2].constant().unwrap_or(Val::NULL),
    );
    if let Some(r) = compile(c, pattern, options)? {
        c.prepared = super::node::Prepared::Regex(Prepared(Arc::new(r)));
    }
    Ok(())
}

/// `None` when the pattern is null.
fn compile(c: &Call, pattern: Val<'_>, options: Val<'_>) -> Result<Option<Regex>> {
    let name = c.op.name;
    if !options.is_nullish() && options.tag != tag::STRING {
        bail!(
            51106,
            "{name} needs 'options' to be of type string, found: {}",
            options.type_name()
        );
    }
    let given = !options.is_nullish();
    let options = options.as_str().unwrap_or("");
    let (text, flags) = match (pattern.tag, pattern.as_str(), pattern.as_regex()) {
        (tag::NULL | tag::UNDEFINED, ..) => return Ok(None),
        (_, Some(s), _) => (s, options),
        (_, _, Some((p, own))) => {
            if !own.is_empty() && given {
                bail!(
                    51107,
                    "{name}: found regex option(s) specified in both 'regex' and 'option' fields"
                );
            }
            (p, if own.is_empty() { options } else { own })
        }
        _ => bail!(
            51105,
            "{name} needs 'regex' to be of type string or regex, found: {}",
            pattern.type_name()
        ),
    };
    if text.contains('\0') {
        bail!(
            51109,
            "{name}: regular expression cannot contain an embedded null byte"
        );
    }
    let options = flags_of(name, flags)?;
    if text.len() > MAX_PATTERN_BYTES {
        bail!(
            51111,
            "Invalid Regex in {name}: regular expression is too large"
        );
    }
    Regex::new(text, options)
        .map(Some)
        .map_err(|e| err!(51111, "Invalid Regex in {name}: {e}").into())
}

/// What a match counts as work before it is known how often the pattern goes back: a loop asks
/// after a few.
const MATCH_UNITS: usize = 64;
/// Bytes of a text that count as a unit of work: more is done with them than reading.
const BYTES_OF_UNIT: usize = 16;

/// What matching a text of so many bytes counts as work.
pub(crate) fn units(bytes: usize) -> usize {
    MATCH_UNITS + bytes / BYTES_OF_UNIT
}

/// The longest pattern that MongoDB accepts.
const MAX_PATTERN_BYTES: usize = 16 * 1024;

fn flags_of(name: &str, flags: &str) -> Result<pcre::PatternOptions> {
    let mut o = pcre::PatternOptions::default();
    for f in flags.chars() {
        match f {
            'i' => o.caseless = true,
            'm' => o.multi_line = true,
            's' => o.dotall = true,
            'x' => o.extended = true,
            'u' => {}
            '\0' => bail!(
                51110,
                "{name}: regular expression options cannot contain an embedded null byte"
            ),
            other => bail!(51108, "{name} invalid flag in regex options: {other}"),
        }
    }
    Ok(o)
}

fn find<'a>(c: &'a Call, ctx: &EvalCtx<'a>, want: RegexResult) -> Result<Computed<'a>> {
    let input = c.arg(0, ctx)?;
    let here;
    let regex = match &c.prepared {
        super::node::Prepared::Regex(Prepared(r)) => Some(&**r),
        _ => {
            let (pattern, options) = (c.arg(1, ctx)?, c.arg(2, ctx)?);
            here = compile(c, pattern.or_null(), options.or_null())?;
            here.as_ref()
        }
    };
    if !input.is_nullish() && input.or_null().tag != tag::STRING {
        bail!(
            51104,
            "{} needs 'input' to be of type string, found: {}",
            c.op.name,
            input.type_name()
        );
    }
    let (Some(regex), Some(text)) = (regex, input.or_null().as_str()) else {
        return match want {
            RegexResult::First => Ok(Computed::NULL),
            RegexResult::All => own(Writer::new_array().finish_array()),
            RegexResult::Whether => boolean(false),
        };
    };
    let search = Search {
        name: c.op.name,
        regex,
        text,
        ctx,
    };
    ctx.vars.work(units(text.len()))?;
    match want {
        RegexResult::Whether => {
            boolean(search.run(|regex, may_go_on| regex.is_match(text, may_go_on))?)
        }
        RegexResult::First => {
            let mut matches = Matches::new(search)?;
            match matches.next()? {
                Some(v) => own(v),
                None => Ok(Computed::NULL),
            }
        }
        RegexResult::All => {
            let mut matches = Matches::new(search)?;
            let mut w = Writer::new_array();
            while let Some(v) = matches.next()? {
                ctx.vars.work(MATCH_UNITS)?;
                w.push(v.as_val());
                super::values::check_size(w.len())?;
            }
            own(w.finish_array())
        }
    }
}

/// A pattern, a text, and the context that may end the match.
struct Search<'r, 'v> {
    name: &'static str,
    regex: &'r Regex,
    text: &'r str,
    ctx: &'r EvalCtx<'v>,
}

impl<'r> Search<'r, '_> {
    /// A match's result; if the context ends it, that error.
    fn run<T>(
        &self,
        matched: impl FnOnce(&'r Regex, pcre::MayGoOn<'_>) -> Result<T, MatchFailure>,
    ) -> Result<T> {
        let ended: Cell<Option<Stop>> = Cell::new(None);
        let mut may_go_on = |units| match self.ctx.vars.work(units) {
            Ok(()) => true,
            Err(e) => {
                ended.set(Some(e));
                false
            }
        };
        let made = matched(self.regex, &mut may_go_on);
        match (ended.into_inner(), made) {
            (Some(e), _) => Err(e),
            (None, Ok(v)) => Ok(v),
            (None, Err(MatchFailure::Limit(why))) => bail!(
                51156,
                "Error occurred while executing the regular expression in {}. Result code: {why}",
                self.name
            ),
            (None, Err(MatchFailure::Ended)) => bail!(Interrupted, "operation was interrupted"),
        }
    }
}

/// Walks over matches, counting code points as it goes.
struct Matches<'r, 'v> {
    search: Search<'r, 'v>,
    found: pcre::Captures,
    text: &'r str,
    at: usize,
    counted_to: usize,
    code_points: usize,
}

impl<'r, 'v> Matches<'r, 'v> {
    fn new(search: Search<'r, 'v>) -> Result<Matches<'r, 'v>> {
        Ok(Matches {
            found: search.run(|regex, _| regex.captures())?,
            text: search.text,
            search,
            at: 0,
            counted_to: 0,
            code_points: 0,
        })
    }

    /// `{match, idx, captures}`
    fn next(&mut self) -> Result<Option<Value>> {
        // An empty text is searched once, any other one not at its end.
        if self.at > 0 && self.at >= self.text.len() {
            return Ok(None);
        }
        let (text, at, found) = (self.text, self.at, &mut self.found);
        let any = self
            .search
            .run(|regex, may_go_on| regex.captures_at(text, at, found, may_go_on))?;
        let Some((start, end)) = self.found.get(0).filter(|_| any) else {
            self.at = self.text.len() + 1;
            return Ok(None);
        };
        let part = |from: usize, to: usize| self.text.get(from..to).unwrap_or("");
        self.code_points += part(self.counted_to, start).chars().count();
        self.counted_to = start;
        let mut w = Writer::new();
        w.str("match", part(start, end));
        w.i32("idx", i32::try_from(self.code_points).unwrap_or(i32::MAX));
        w.open_array("captures");
        for i in 1..self.found.len() {
            match self.found.get(i) {
                Some((from, to)) => w.str("", part(from, to)),
                None => w.null(""),
            };
        }
        w.close();
        self.at = if end > start {
            end
        } else {
            // An empty match: go on one character further.
            let step = self.text.get(end..).and_then(|t| t.chars().next());
            end + step.map_or(1, char::len_utf8)
        };
        Ok(Some(Value::from(w.finish())))
    }
}
