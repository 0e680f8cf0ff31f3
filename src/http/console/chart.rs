//! Charts as SVG, drawn here. All of it is places and sizes as attributes, with classes for colours;
//! the figures stand in a table beside it, which is what screen readers get.

use std::fmt::Write;

use super::figures::{Markup, escape, short};

/// One column: how its pieces stack up from below.
pub struct Column {
    /// Below the axis; empty where it would be too much.
    pub label: String,
    /// Shown for who points at it.
    pub title: String,
    pub pieces: Vec<u64>,
}

const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 54.0;
const BELOW: f64 = 22.0;
const ABOVE: f64 = 8.0;
const LINES: u64 = 4;

/// Columns of pieces in the colours `f1`, `f2`...; `limit` is a line across.
pub fn columns(columns: &[Column], limit: Option<u64>) -> Markup {
    let sums =
        columns.iter().map(|column| column.pieces.iter().fold(0u64, |sum, piece| sum.saturating_add(*piece)));
    let top = ceiling(sums.chain(limit).max().unwrap_or(0));
    let floor = HEIGHT - BELOW;
    let y = |value: u64| floor - (floor - ABOVE) * (value as f64 / top as f64).min(1.0);
    let mut svg = String::with_capacity(8 * 1024);
    // Writing to a String cannot fail.
    let _ = write!(svg, "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" aria-hidden=\"true\">");
    for line in 0..=LINES {
        let value = top / LINES * line;
        let at = y(value);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            at + 4.0,
            short(value)
        );
    }
    let step = (WIDTH - LEFT) / columns.len().max(1) as f64;
    let wide = (step * 0.72).min(56.0);
    for (place, column) in columns.iter().enumerate() {
        let middle = LEFT + step * (place as f64 + 0.5);
        let _ = write!(svg, "<g><title>{}</title>", escape(&column.title));
        let mut sum = 0u64;
        for (index, piece) in column.pieces.iter().enumerate() {
            let below = y(sum);
            sum = sum.saturating_add(*piece);
            let height = (below - y(sum)).max(0.0);
            if height > 0.0 {
                let _ = write!(
                    svg,
                    "<rect class=\"f{}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{wide:.1}\" height=\"{height:.1}\"/>",
                    index % 5 + 1,
                    middle - wide / 2.0,
                    y(sum)
                );
            }
        }
        svg.push_str("</g>");
        if !column.label.is_empty() {
            let label = escape(&column.label);
            let _ = write!(
                svg,
                "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                HEIGHT - 5.0
            );
        }
    }
    if let Some(limit) = limit {
        let at = y(limit);
        let _ =
            write!(svg, "<line class=\"limit\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>");
    }
    svg.push_str("</svg>");
    Markup::made(svg)
}

/// The next round figure at or above, which has four equal parts.
fn ceiling(value: u64) -> u64 {
    let mut unit = 1u64;
    loop {
        for step in [4, 8, 12, 20, 40] {
            let top = unit.saturating_mul(step);
            if top >= value {
                return top;
            }
        }
        unit = unit.saturating_mul(10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_figures() {
        let ends: Vec<u64> = [0, 4, 5, 13, 21, 41, 99, 1_234_567].map(ceiling).to_vec();
        assert_eq!(ends, [4, 4, 8, 20, 40, 80, 120, 2_000_000]);
        assert_eq!(ceiling(u64::MAX), u64::MAX);
    }

    #[test]
    fn pieces_stack_and_nothing_written_by_others_is_markup() {
        let column = Column { label: "<a>".into(), title: "&".into(), pieces: vec![1, 0, 3] };
        let svg = columns(&[column], Some(4)).to_string();
        assert_eq!(svg.matches("<rect").count(), 2);
        assert!(
            svg.contains("&lt;a&gt;")
                && svg.contains("<title>&amp;</title>")
                && svg.contains("class=\"limit\"")
        );
    }
}
