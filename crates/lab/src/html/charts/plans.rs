//! Of study K: chosen over best, as the share of queries that do not pass it, and as the share that do.

use super::super::palette;
use super::super::plot::{Axis, Body, Line};
use super::Charts;
use crate::lang::tr;
use crate::report::Choices;

impl Charts<'_> {
    pub(super) fn plans(&mut self) {
        let asked = self.report.choices.iter().enumerate();
        let asked = asked.filter(|(_, c)| c.queries() > 0);
        let labels: Vec<String> = self
            .report
            .choices
            .iter()
            .map(|c| c.target.clone())
            .collect();
        let colors = palette::colors(&labels);
        let both = asked.map(|(i, c)| {
            let color = colors[i];
            let line = |points| Line {
                name: c.target.clone(),
                color,
                points,
                ..Line::default()
            };
            (line(reached(c)), line(passed(c)))
        });
        let (reached, passed): (Vec<Line>, Vec<Line>) = both.unzip();
        if reached.is_empty() {
            return;
        }
        let ticks = vec![1.0, 1.2, 2.0, 5.0, 10.0, 100.0, 1000.0, 10_000.0];
        self.push(
            "plans-reached",
            tr("What the chosen plan reads, over what the best reads").into(),
            tr("The share of queries that read at most so many times the least that any index reads. The earlier a line reaches 100%, the better."),
            Axis::log(tr("times the best"), ticks.clone()),
            Axis {
                suffix: "%",
                ..Axis::linear(tr("queries, "))
            },
            Body::Lines(reached),
        );
        self.push(
            "plans-passed",
            tr("The queries that read more than they had to").into(),
            tr("The share of queries that read at least so many times the least. The tail is what a user notices; a line that ends early is good."),
            Axis::log(tr("times the best"), ticks),
            Axis {
                suffix: "%",
                ..Axis::log(tr("queries, "), Vec::new())
            },
            Body::Lines(passed),
        );
    }
}

/// At each quotient that occurs, the percentage of queries that do not pass it.
fn reached(c: &Choices) -> Vec<(f64, f64)> {
    let all = c.times();
    let percent = |n: usize| 100.0 * n as f64 / all.len() as f64;
    let last = |i: &usize| all.get(i + 1).is_none_or(|next| *next > all[*i]);
    let places = (0..all.len()).filter(last);
    places.map(|i| (all[i], percent(i + 1))).collect()
}

/// At each quotient that occurs, the percentage of queries that reach or pass it.
fn passed(c: &Choices) -> Vec<(f64, f64)> {
    let all = c.times();
    let percent = |n: usize| 100.0 * n as f64 / all.len() as f64;
    let first = |i: &usize| *i == 0 || all[i - 1] < all[*i];
    let places = (0..all.len()).filter(first);
    places.map(|i| (all[i], percent(all.len() - i))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Draft, QueryChoice};

    #[test]
    fn a_page_of_study_k_opens_with_the_distribution() {
        let mut report = Draft::new("study", "K-plans").report;
        let mut c = Choices::default();
        let choice = |chosen: u64| QueryChoice {
            chosen,
            best: 95,
            ..QueryChoice::default()
        };
        c.add([95, 95, 195, 995].map(choice).to_vec());
        assert_eq!(reached(&c), [(1.0, 50.0), (2.0, 75.0), (10.0, 100.0)]);
        assert_eq!(passed(&c), [(1.0, 100.0), (2.0, 50.0), (10.0, 25.0)]);
        report.choices.push(c);
        let charts = super::super::of(&report);
        let first = super::super::first(&report, &charts);
        let ids: Vec<&str> = first.iter().map(|i| charts[*i].id.as_str()).collect();
        assert_eq!(ids, ["plans-reached", "plans-passed"]);
        assert!(charts[0].file().contains("times the best"));
    }
}
