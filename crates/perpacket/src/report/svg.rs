//! A plot as SVG: panels side by side, an axis upwards, logarithmic or not, a bar for each interval.

use std::fmt::Write;

/// What is drawn.
pub(crate) struct Plot {
    pub(crate) title: String,
    /// What the horizontal axis is.
    pub(crate) across: String,
    /// The names of its places, from left to right.
    pub(crate) places: Vec<String>,
    pub(crate) panels: Vec<Panel>,
    pub(crate) scale: Scale,
}

/// The axis upwards.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scale {
    /// Logarithmic, around the values.
    Logarithmic,
    /// From a value to another, with lines at so many equal steps.
    Linear { low: f64, high: f64, steps: u32 },
}

pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) series: Vec<Series>,
}

pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<Point>,
}

/// A value above 0, and its interval.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    /// Which of the places.
    pub(crate) place: usize,
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Sizes in user units of the picture.
const PANEL_WIDTH: f64 = 420.0;
const PANEL_HEIGHT: f64 = 380.0;
const MARGIN: f64 = 56.0;
const LEGEND_LINE: f64 = 18.0;

/// Colours that people with a weakness for red and green tell apart (Okabe and Ito), and again, dashed.
const COLOURS: [&str; 8] =
    ["#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"];

impl Plot {
    /// The picture.
    pub(crate) fn svg(&self) -> String {
        let names = self.names();
        let width = MARGIN + self.panels.len().max(1) as f64 * (PANEL_WIDTH + MARGIN);
        let height = PANEL_HEIGHT + 3.0 * MARGIN + names.len() as f64 * LEGEND_LINE;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        text(&mut out, MARGIN, 24.0, "start", &self.title);
        let (least, most) = match self.scale {
            Scale::Logarithmic => self.range(),
            Scale::Linear { low, high, .. } => (low, high),
        };
        for (number, panel) in self.panels.iter().enumerate() {
            let left = MARGIN + number as f64 * (PANEL_WIDTH + MARGIN);
            let frame =
                Frame { left, top: MARGIN, places: self.places.len(), least, most, scale: self.scale };
            self.axes(&mut out, &frame, panel);
            for series in &panel.series {
                let style = names.iter().position(|name| *name == series.name).unwrap_or(0);
                frame.line(&mut out, series, style);
            }
        }
        for (number, name) in names.iter().enumerate() {
            let y = PANEL_HEIGHT + 2.5 * MARGIN + number as f64 * LEGEND_LINE;
            let stroke = stroke(number);
            let _ = writeln!(
                out,
                "<line x1=\"{MARGIN}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" {stroke}/>",
                MARGIN + 30.0
            );
            text(&mut out, MARGIN + 38.0, y + 4.0, "start", name);
        }
        out + "</svg>\n"
    }

    /// Each series once, in the order in which they come.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !names.contains(&series.name) {
                names.push(series.name.clone());
            }
        }
        names
    }

    /// Powers of ten around all values.
    fn range(&self) -> (f64, f64) {
        let points = self.panels.iter().flat_map(|panel| &panel.series).flat_map(|series| &series.points);
        let values: Vec<f64> = points
            .flat_map(|point| [point.low, point.value, point.high])
            .filter(|&value| value > 0.0)
            .collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        if values.is_empty() {
            return (1.0, 10.0);
        }
        let low = 10_f64.powf(least.log10().floor());
        (low, 10_f64.powf(most.log10().ceil()).max(10.0 * low))
    }

    fn axes(&self, out: &mut String, frame: &Frame, panel: &Panel) {
        let bottom = frame.top + PANEL_HEIGHT;
        for value in frame.lines() {
            let y = frame.up(value);
            let _ = writeln!(
                out,
                "<line x1=\"{}\" y1=\"{y:.1}\" x2=\"{}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>",
                frame.left,
                frame.left + PANEL_WIDTH
            );
            text(out, frame.left - 6.0, y + 4.0, "end", &format!("{value}"));
        }
        for (place, name) in self.places.iter().enumerate() {
            text(out, frame.along(place), bottom + 18.0, "middle", name);
        }
        text(out, frame.left + PANEL_WIDTH / 2.0, bottom + 38.0, "middle", &self.across);
        text(out, frame.left + PANEL_WIDTH / 2.0, frame.top - 8.0, "middle", &panel.title);
    }
}

/// Where a panel is, and what its axes mean.
struct Frame {
    left: f64,
    top: f64,
    places: usize,
    least: f64,
    most: f64,
    scale: Scale,
}

impl Frame {
    /// Values at which a line is drawn.
    fn lines(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear { low, high, steps } => {
                let steps = steps.max(1);
                let round = |value: f64| (value * 1e6).round() / 1e6;
                (0..=steps)
                    .map(|step| round(low + (high - low) * f64::from(step) / f64::from(steps)))
                    .collect()
            }
            Scale::Logarithmic => {
                let mut values = Vec::new();
                let mut value = self.least;
                while value <= self.most * 1.01 {
                    values.extend([1.0, 2.0, 5.0].map(|step| step * value));
                    value *= 10.0;
                }
                values.retain(|&value| value <= self.most * 1.01);
                values
            }
        }
    }

    fn along(&self, place: usize) -> f64 {
        self.left + PANEL_WIDTH * (place as f64 + 0.5) / self.places.max(1) as f64
    }

    fn up(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear { low, high, .. } => (value.clamp(low, high) - low) / (high - low),
            Scale::Logarithmic => (value.max(self.least) / self.least).ln() / (self.most / self.least).ln(),
        };
        self.top + PANEL_HEIGHT * (1.0 - share)
    }

    fn line(&self, out: &mut String, series: &Series, style: usize) {
        let places: Vec<String> = series
            .points
            .iter()
            .map(|point| format!("{:.1},{:.1}", self.along(point.place), self.up(point.value)))
            .collect();
        let stroke = stroke(style);
        let _ = writeln!(out, "<polyline points=\"{}\" fill=\"none\" {stroke}/>", places.join(" "));
        for point in &series.points {
            let (x, y) = (self.along(point.place), self.up(point.value));
            let colour = COLOURS[style % COLOURS.len()];
            let _ = writeln!(
                out,
                "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"3\"/>\
                 <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>",
                self.up(point.low),
                self.up(point.high)
            );
        }
    }
}

fn stroke(style: usize) -> String {
    let dashes = ["", " stroke-dasharray=\"6 3\"", " stroke-dasharray=\"2 3\""];
    let dash = dashes[style / COLOURS.len() % dashes.len()];
    format!("stroke=\"{}\" stroke-width=\"1.5\"{dash}", COLOURS[style % COLOURS.len()])
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(values: &[f64]) -> String {
        let point =
            |(place, &value): (usize, &f64)| Point { place, value, low: value * 0.9, high: value * 1.1 };
        let points: Vec<Point> = values.iter().enumerate().map(point).collect();
        let series = vec![Series { name: "a < b & c".into(), points }];
        let places = (0..values.len()).map(|place| place.to_string()).collect();
        let panels = vec![Panel { title: "one".into(), series }];
        Plot { title: "costs".into(), across: "bytes".into(), places, panels, scale: Scale::Logarithmic }
            .svg()
    }

    #[test]
    fn every_point_and_its_interval_is_drawn_inside_the_panel() {
        let svg = plot(&[1.5, 20.0, 900.0]);
        assert_eq!(svg.matches("<circle").count(), 3);
        let heights =
            svg.split("cy=\"").skip(1).map(|rest| rest.split('"').next().unwrap().parse::<f64>().unwrap());
        for y in heights {
            assert!((MARGIN..=MARGIN + PANEL_HEIGHT).contains(&y), "{y}");
        }
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a &lt; b &amp; c") && !svg.contains("a < b"));
    }

    #[test]
    fn shares_stand_on_an_axis_with_equal_steps() {
        let frame = |value| {
            let scale = Scale::Linear { low: 90.0, high: 100.0, steps: 5 };
            let frame = Frame { left: 0.0, top: 0.0, places: 1, least: 90.0, most: 100.0, scale };
            (frame.up(value), frame.lines())
        };
        assert_eq!(frame(100.0), (0.0, vec![90.0, 92.0, 94.0, 96.0, 98.0, 100.0]));
        assert_eq!((frame(95.0).0, frame(50.0).0), (PANEL_HEIGHT / 2.0, PANEL_HEIGHT));
    }

    #[test]
    fn nothing_to_draw_is_still_a_picture() {
        for svg in [plot(&[]), plot(&[5.0]), plot(&[10.0])] {
            assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
