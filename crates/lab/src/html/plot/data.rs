//! A plot of lines as data for the page's chart library, which draws it where it is looked at: there one can zoom, read
//! values off and leave lines out.
//!
//! Invariant: what stands in the page cannot end the script element that it stands in; values that are not finite are left
//! out.

use super::lines::thin;
use super::{Axis, Body, Chart, Line};
use serde_json::{Value, json};

/// Points of a line that are drawn at the most.
const MOST: usize = 900;

/// Points of a line by place; lines of a plot share their places.
type Points = Vec<(f64, f64)>;

fn axis(a: &Axis) -> Value {
    json!({"label": a.label, "log": a.log, "ticks": a.ticks, "suffix": a.suffix, "shares": a.shares})
}

/// The values of a line at all places of the plot; none where it has no point.
fn at(places: &[f64], points: &Points) -> Vec<Option<f64>> {
    let mut values = vec![None; places.len()];
    for (x, y) in points {
        if let Ok(i) = places.binary_search_by(|p| p.total_cmp(x)) {
            values[i] = Some(*y);
        }
    }
    values
}

fn finite(points: impl Iterator<Item = (f64, f64)>) -> Points {
    points
        .filter(|(x, y)| x.is_finite() && y.is_finite())
        .collect()
}

impl Chart {
    /// JSON that can stand inside of a script element; nothing for plots that are not of lines.
    pub fn data(&self) -> Option<String> {
        let Body::Lines(lines) = &self.body else {
            return None;
        };
        let drawn: Vec<Points> = lines
            .iter()
            .map(|l| finite(thin(&l.points, MOST).into_iter()))
            .collect();
        let bands: Vec<[Points; 2]> = lines.iter().map(band).collect();
        let mut places: Vec<f64> = drawn.iter().flatten().map(|p| p.0).collect();
        places.extend(bands.iter().flatten().flatten().map(|p| p.0));
        places.sort_by(f64::total_cmp);
        places.dedup();
        let series = lines.iter().zip(&drawn).zip(&bands).map(|((l, points), band)| {
            let [low, high] = band;
            let band = (low.len() > 1).then(|| json!([at(&places, low), at(&places, high)]));
            json!({
                "name": l.name, "color": l.color % super::COLORS, "dashed": l.dashed, "dots": l.dots,
                "fine": points.len() > 150, "values": at(&places, points), "band": band,
            })
        });
        let marks = lines.iter().flat_map(|l| {
            let shown = l
                .marks
                .iter()
                .filter(|m| m.0.is_finite() && m.1.is_finite());
            shown.map(|(x, y, what)| {
                let short = what.split(": ").next().unwrap_or_default();
                json!([x, y, l.color % super::COLORS, short])
            })
        });
        let data = json!({
            "x": axis(&self.x), "y": axis(&self.y), "at": places,
            "series": series.collect::<Vec<_>>(), "marks": marks.collect::<Vec<_>>(),
            "events": self.events.iter().map(|(what, at)| json!([what, at])).collect::<Vec<_>>(),
        });
        Some(data.to_string().replace('<', "\\u003c"))
    }
}

fn band(l: &Line) -> [Points; 2] {
    [
        finite(l.band.iter().map(|b| (b.0, b.1))),
        finite(l.band.iter().map(|b| (b.0, b.2))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_share_their_places_and_nothing_breaks_out() {
        let line = |points: &[(f64, f64)]| Line {
            name: "</script><b>".into(),
            points: points.to_vec(),
            band: vec![(1.0, 0.5, 1.5), (2.0, f64::NAN, 2.5)],
            ..Line::default()
        };
        let chart = Chart {
            id: "x".into(),
            title: String::new(),
            caption: String::new(),
            x: Axis::linear("x"),
            y: Axis::log("y", Vec::new()),
            body: Body::Lines(vec![
                line(&[(1.0, 1.0), (3.0, 3.0)]),
                line(&[(2.0, 2.0), (3.0, f64::INFINITY)]),
            ]),
            events: Vec::new(),
        };
        let text = chart.data().unwrap();
        assert!(!text.contains('<'));
        let data: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(data["at"], json!([1.0, 2.0, 3.0]));
        assert_eq!(data["series"][0]["values"], json!([1.0, null, 3.0]));
        assert_eq!(data["series"][1]["values"], json!([null, 2.0, null]));
        assert_eq!(data["series"][0]["name"], "</script><b>");
        let bars = Chart {
            body: Body::Boxes(Vec::new()),
            ..chart
        };
        assert!(bars.data().is_none());
    }
}
