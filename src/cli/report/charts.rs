//! Charts as SVG. They contain no text; labels are HTML, which keeps its size on a phone.

use std::fmt::Write;

use super::html::escaped;

/// One bar of a chart.
pub struct Bar {
    /// The day or month.
    pub name: String,
    /// The height, in the unit of the chart; None if nothing was counted.
    pub value: Option<f64>,
    /// The value as text.
    pub words: String,
}

const HEIGHT: f64 = 100.0;
/// The free part of the width of a bar.
const GAP: f64 = 0.22;

/// A bar chart over time. `most` is the top of the chart, `top` its label.
pub fn bars(id: &str, title: &str, bars: &[Bar], most: f64, top: &str) -> String {
    let count = bars.len().max(1) as f64;
    let mut shown = format!(
        "<figure class=\"chart\" id=\"{id}\"><figcaption>{0}</figcaption>\n<div class=\"top\">{1}</div>\n\
         <svg viewBox=\"0 0 {count} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{0}\">\n",
        escaped(title.as_bytes()),
        escaped(top.as_bytes()),
    );
    for line in [0.0, 50.0, 100.0] {
        let _ = writeln!(shown, "<path class=\"grid\" d=\"M0 {line}H{count}\"/>");
    }
    for (index, bar) in bars.iter().enumerate() {
        let name = escaped(bar.name.as_bytes());
        let words = escaped(bar.words.as_bytes());
        // Over the full height, so that it is easy to point at.
        let _ = write!(
            shown,
            "<g><title>{name}: {words}</title><rect class=\"area\" x=\"{index}\" y=\"0\" width=\"1\" height=\"{HEIGHT}\"/>"
        );
        if let Some(value) = bar.value {
            let part = if most > 0.0 { value / most } else { 0.0 };
            // A small value is still visible.
            let height = if value > 0.0 {
                (part * HEIGHT).clamp(1.0, HEIGHT)
            } else {
                0.0
            };
            let _ = write!(
                shown,
                "<rect class=\"bar\" x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{height:.2}\"/>",
                index as f64 + GAP / 2.0,
                HEIGHT - height,
                1.0 - GAP,
            );
        }
        shown += "</g>\n";
    }
    shown += "</svg>\n<div class=\"axis\">";
    let labels = [bars.first(), bars.get(bars.len() / 2), bars.last()];
    for bar in labels.into_iter().flatten() {
        let _ = write!(shown, "<span>{}</span>", escaped(bar.name.as_bytes()));
    }
    shown += "</div>\n<details><summary>As text</summary><ul>";
    for bar in bars.iter().rev().filter(|bar| bar.value.is_some()) {
        let (name, words) = (escaped(bar.name.as_bytes()), escaped(bar.words.as_bytes()));
        let _ = write!(shown, "<li>{name}: {words}</li>");
    }
    // HTML requires an item.
    if bars.iter().all(|bar| bar.value.is_none()) {
        shown += "<li>nothing yet</li>";
    }
    shown + "</ul></details></figure>\n"
}

/// A bar in a cell of a table, relative to the largest value.
pub fn part(value: f64, most: f64) -> String {
    let width = if most > 0.0 {
        (value / most * 100.0).clamp(0.0, 100.0)
    } else {
        0.0
    };
    format!(
        "<svg class=\"part\" viewBox=\"0 0 100 1\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect class=\"area\" width=\"100\" height=\"1\"/><rect class=\"bar\" width=\"{width:.1}\" height=\"1\"/></svg>"
    )
}
