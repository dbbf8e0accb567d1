//! Line charts as inline SVG: axes, grid, lines, a legend. Nothing is fetched and no script runs.

use std::fmt::Write as _;

/// How values become places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from 0.
    Linear,
    /// By magnitude; values below the smallest positive one are left out.
    Log,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its points, by rising x.
    pub points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// Below the x axis, with the unit.
    pub x: &'static str,
    /// Above the y axis, with the unit.
    pub y: &'static str,
    /// Of the x axis.
    pub x_scale: Scale,
    /// Of the y axis.
    pub y_scale: Scale,
    /// At most four.
    pub lines: Vec<Line>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 45.0;

/// Told apart also by those who do not see red and green (Okabe and Ito).
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

/// An axis: values and the places between which they lie.
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn new(scale: Scale, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Axis {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite() && (scale == Scale::Linear || *value > 0.0)) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (1.0, 1.0);
        }
        match scale {
            Scale::Linear => (low, high) = (0.0, if high > 0.0 { high * 1.05 } else { 1.0 }),
            Scale::Log => {
                low = 10f64.powf(low.log10().floor());
                high = 10f64.powf(high.log10().ceil()).max(low * 10.0);
            }
        }
        Axis { scale, low, high, from, to }
    }

    fn place(&self, value: f64) -> Option<f64> {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log if value <= 0.0 => return None,
            Scale::Log => (value.log10() - self.low.log10()) / (self.high.log10() - self.low.log10()),
        };
        share.is_finite().then(|| self.from + share.clamp(0.0, 1.0) * (self.to - self.from))
    }

    fn ticks(&self) -> Vec<f64> {
        if self.scale == Scale::Log {
            let (low, high) = (self.low.log10().round() as i32, self.high.log10().round() as i32);
            return (low..=high).map(|power| 10f64.powi(power)).collect();
        }
        let raw = (self.high - self.low) / 5.0;
        let magnitude = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * magnitude).into_iter().find(|step| *step >= raw);
        let step = step.unwrap_or(raw);
        (0..).map(|n| f64::from(n) * step).take_while(|tick| *tick <= self.high).collect()
    }
}

impl Chart {
    /// The SVG element.
    pub fn svg(&self) -> String {
        let xs = self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.0));
        let ys = self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
        let x = Axis::new(self.x_scale, xs, LEFT, WIDTH - RIGHT);
        let y = Axis::new(self.y_scale, ys, HEIGHT - BOTTOM, TOP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\">\
             <text x=\"{LEFT}\" y=\"16\" class=\"title\">{0}</text>\
             <text x=\"{LEFT}\" y=\"32\">{1}</text><text x=\"{2}\" y=\"{3}\" text-anchor=\"end\">{4}</text>\n",
            escaped(&self.title),
            escaped(self.y),
            WIDTH - RIGHT,
            HEIGHT - 6.0,
            escaped(self.x),
        );
        for tick in x.ticks() {
            let Some(at) = x.place(tick) else { continue };
            let (top, bottom) = (TOP, HEIGHT - BOTTOM);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{bottom}\"/><text x=\"{at:.1}\" \
                 y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                amount(tick)
            );
        }
        for tick in y.ticks() {
            let Some(at) = y.place(tick) else { continue };
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text x=\"{}\" \
                 y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                amount(tick)
            );
        }
        for (index, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let points: Vec<(f64, f64)> =
                line.points.iter().filter_map(|point| x.place(point.0).zip(y.place(point.1))).collect();
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(
                svg,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
                path.join(" ")
            );
            if points.len() <= 20 {
                for (x, y) in points {
                    let _ = write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
                }
            }
            let at = WIDTH - RIGHT - 90.0 * (self.lines.len() - index) as f64;
            let _ = writeln!(
                svg,
                "<rect x=\"{at}\" y=\"22\" width=\"12\" height=\"4\" fill=\"{colour}\"/><text x=\"{}\" y=\"29\">{}</text>",
                at + 16.0,
                escaped(&line.name)
            );
        }
        svg + "</svg>\n"
    }
}

/// A number with as many digits as it needs: `0.25`, `12`, `1.5k`, `3M`.
pub fn amount(value: f64) -> String {
    let (value, unit) = match value.abs() {
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{value:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Text as it may stand in HTML and in its attributes.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(y_scale: Scale, points: Vec<(f64, f64)>) -> String {
        let lines = vec![Line { name: "a<b".into(), points }];
        Chart { title: "T".into(), x: "s", y: "ms", x_scale: Scale::Linear, y_scale, lines }.svg()
    }

    #[test]
    fn a_line_goes_from_corner_to_corner_and_names_are_escaped() {
        let svg = chart(Scale::Log, vec![(0.0, 1.0), (10.0, 1000.0)]);
        assert!(
            svg.contains("points=\"70.0,255.0 ") && svg.contains("a&lt;b") && !svg.contains("a<b"),
            "{svg}"
        );
        assert_eq!(svg.matches("<circle").count(), 2);
    }

    #[test]
    fn no_values_or_strange_ones_make_no_broken_chart() {
        for points in [vec![], vec![(0.0, 0.0)], vec![(1.0, f64::NAN), (2.0, f64::INFINITY)]] {
            for scale in [Scale::Linear, Scale::Log] {
                let svg = chart(scale, points.clone());
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
    }

    #[test]
    fn amounts_are_short() {
        let texts = [0.0, 0.25, 12.0, 15_000.0, 3e6].map(amount);
        assert_eq!(texts, ["0", "0.25", "12", "15k", "3M"]);
    }
}
