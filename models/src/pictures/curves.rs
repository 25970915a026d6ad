//! Curves as one SVG or PNG: panels side by side, each with labelled axes and a legend below them.
//!
//! The letters of an SVG are its viewer's; those of a PNG are of the one size that the crate brings
//! ([`Raster`]).
use super::raster::Raster;
use candle::{Error, Result};
use image::{Rgb, RgbImage};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{BoldPoints, DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::ops::Range;

/// One line in a panel.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// What the legend calls it.
    pub name: String,
    /// Points `(x, y)` in the order of `x`. A point that is not finite breaks nothing: it is left
    /// out.
    pub points: Vec<(f64, f64)>,
    /// Whether each point has a mark.
    pub marked: bool,
}

impl Curve {
    /// A line through points in the order of `x`.
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self { name: name.into(), points: points.into_iter().collect(), marked: true }
    }
}

/// A plot with its own axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// Stands above it.
    pub title: String,
    /// What runs along the horizontal axis, with its unit.
    pub x_label: String,
    /// What runs along the vertical axis, with its unit.
    pub y_label: String,
    /// Whether the horizontal axis is logarithmic; points that are not above 0 are then left out.
    pub log_x: bool,
    /// The same for the vertical axis.
    pub log_y: bool,
    /// The lines in it; without a point the panel shows empty axes.
    pub curves: Vec<Curve>,
}

impl Panel {
    /// A plot of these lines, with linear axes.
    pub fn new(
        title: impl Into<String>,
        x_label: impl Into<String>,
        y_label: impl Into<String>,
        curves: Vec<Curve>,
    ) -> Self {
        let (title, x_label, y_label) = (title.into(), x_label.into(), y_label.into());
        Self { title, x_label, y_label, log_x: false, log_y: false, curves }
    }

    /// The same with a logarithmic vertical axis.
    pub fn log(self) -> Self {
        Self { log_y: true, ..self }
    }

    /// The same with a logarithmic horizontal axis.
    pub fn log_x(self) -> Self {
        Self { log_x: true, ..self }
    }
}

/// Width and height of a panel without its legend, in pixels.
const PANEL: (u32, u32) = (480, 340);

/// Line colours that colour-blind readers can tell apart (Okabe and Ito 2008).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// Draws the panels in a row; the result is a whole SVG document.
///
/// # Errors
/// When there is no panel, or the plotter fails.
pub fn draw(panels: &[Panel]) -> Result<String> {
    let mut svg = String::new();
    draw_on(SVGBackend::with_string(&mut svg, size_of(panels, 12)?).into_drawing_area(), panels, 12)?;
    Ok(svg)
}

/// Draws the panels in a row, as pixels.
///
/// # Errors
/// As [`draw`].
pub fn draw_pixels(panels: &[Panel]) -> Result<RgbImage> {
    // Letters of 8 pixels: about as wide as those of a 15-point font.
    const LETTERS: u32 = 15;
    let (width, height) = size_of(panels, LETTERS)?;
    let mut picture = RgbImage::from_pixel(width, height, Rgb([255; 3]));
    draw_on(Raster::new(&mut picture).into_drawing_area(), panels, LETTERS)?;
    Ok(picture)
}

/// Width and height of the whole; `letters` is the size of a legend's letters.
fn size_of(panels: &[Panel], letters: u32) -> Result<(u32, u32)> {
    let legends = panels.iter().map(|panel| Legend::of(panel, letters).height());
    match legends.max() {
        None => candle::bail!("curves: there must be at least 1 panel, got none"),
        Some(legend) => Ok((PANEL.0 * panels.len() as u32, PANEL.1 + legend)),
    }
}

fn draw_on<B: DrawingBackend>(root: DrawingArea<B, Shift>, panels: &[Panel], letters: u32) -> Result<()> {
    root.fill(&WHITE).map_err(failed)?;
    for (area, panel) in root.split_evenly((1, panels.len())).iter().zip(panels) {
        let (plot, below) = area.split_vertically(PANEL.1);
        draw_panel(&plot, panel)?;
        Legend::of(panel, letters).draw(&below, panel)?;
    }
    root.present().map_err(failed)
}

/// Names and colours of a panel's curves, in columns of one width.
struct Legend {
    letters: u32,
    rows: usize,
    /// Width of a column, in pixels.
    column: u32,
}

impl Legend {
    /// Where the first mark stands.
    const LEFT: u32 = 20;
    /// A mark, and the space on both sides of it.
    const MARK: u32 = 40;

    fn of(panel: &Panel, letters: u32) -> Self {
        let longest = panel.curves.iter().map(|curve| curve.name.chars().count()).max().unwrap_or(0);
        // Letters are about half as wide as they are high.
        let column = Self::MARK + (0.56 * f64::from(letters) * longest as f64) as u32;
        let columns = ((PANEL.0 - Self::LEFT) / column).max(1) as usize;
        Self { letters, rows: panel.curves.len().div_ceil(columns), column }
    }

    /// From one row to the next, in pixels.
    fn row(&self) -> u32 {
        self.letters + 5
    }

    fn height(&self) -> u32 {
        match self.rows {
            0 => 0,
            rows => rows as u32 * self.row() + 8,
        }
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>, panel: &Panel) -> Result<()> {
        for (i, (curve, colour)) in panel.curves.iter().zip(colours()).enumerate() {
            let x = (Self::LEFT + (i / self.rows) as u32 * self.column) as i32;
            let y = ((i % self.rows) as u32 * self.row()) as i32;
            let (middle, end) = (y + self.letters as i32 / 2, x + 18);
            let mark = PathElement::new(vec![(x, middle), (end, middle)], colour.stroke_width(3));
            area.draw(&mark).map_err(failed)?;
            let name = Text::new(curve.name.as_str(), (end + 8, y), ("sans-serif", self.letters));
            area.draw(&name).map_err(failed)?;
        }
        Ok(())
    }
}

/// One after the other, again from the first.
fn colours() -> impl Iterator<Item = RGBColor> {
    COLOURS.into_iter().cycle()
}

fn draw_panel<B: DrawingBackend>(area: &DrawingArea<B, Shift>, panel: &Panel) -> Result<()> {
    let scaled = |log: bool, value: f64| if log { value.log10() } else { value };
    let finite = |curve: &Curve| -> Vec<(f64, f64)> {
        let points = curve.points.iter().map(|&(x, y)| (scaled(panel.log_x, x), scaled(panel.log_y, y)));
        points.filter(|(x, y)| x.is_finite() && y.is_finite()).collect()
    };
    let curves: Vec<_> = panel.curves.iter().map(finite).collect();
    let points = || curves.iter().flatten();
    let x = Marked::new(range(points().map(|p| p.0)), panel.log_x);
    let y = Marked::new(range(points().map(|p| p.1)), panel.log_y);
    let text = |log: bool, value: f64| number(if log { 10f64.powf(value) } else { value });
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(38)
        .y_label_area_size(64)
        .build_cartesian_2d(x, y)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .x_desc(&panel.x_label)
        .y_desc(&panel.y_label)
        .x_label_formatter(&|&x| text(panel.log_x, x))
        .y_label_formatter(&|&y| text(panel.log_y, y))
        .axis_desc_style(("sans-serif", 14))
        .label_style(("sans-serif", 12))
        .draw()
        .map_err(failed)?;
    for ((points, marked), colour) in curves.iter().zip(panel.curves.iter().map(|c| c.marked)).zip(colours())
    {
        // Each piece for itself: a path that turns sharply gets a spike as long as the plot.
        let pieces = points.windows(2).map(|ends| PathElement::new(ends.to_vec(), colour.stroke_width(2)));
        chart.draw_series(pieces).map_err(failed)?;
        // A run of one epoch has one point, which is no line.
        let marks = points.iter().filter(|_| marked);
        chart.draw_series(marks.map(|&p| Circle::new(p, 2, colour.filled()))).map_err(failed)?;
    }
    Ok(())
}

/// An axis with its marks where they were asked for.
struct Marked {
    axis: RangedCoordf64,
    marks: Vec<f64>,
}

impl Marked {
    /// Of values, or of their logarithms.
    fn new(range: Range<f64>, log: bool) -> Self {
        let marks = if log { log_marks(&range) } else { marks(&range) };
        Self { axis: range.into(), marks }
    }
}

impl Ranged for Marked {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.axis.map(value, limit)
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.axis.range()
    }
}

/// About how many marks an axis has.
const MARKS: usize = 6;

/// Round values in a range.
fn marks(range: &Range<f64>) -> Vec<f64> {
    RangedCoordf64::from(range.clone()).key_points(BoldPoints(MARKS))
}

/// Logarithms, in a range of logarithms, of powers of ten, with 2 and 5 times them where there is
/// room; of round values where the range is too narrow for three of those.
fn log_marks(range: &Range<f64>) -> Vec<f64> {
    let decades = range.start.floor() as i32..=range.end.ceil() as i32;
    let of = |digits: &[f64]| -> Vec<f64> {
        let all =
            decades.clone().flat_map(|decade| digits.iter().map(move |d| f64::from(decade) + d.log10()));
        all.filter(|at| range.contains(at)).collect()
    };
    let candidates = [of(&[1., 2., 5.]), of(&[1., 3.]), of(&[1.])];
    match candidates.into_iter().find(|at| (3..=MARKS + 3).contains(&at.len())) {
        Some(at) => at,
        None if range.end - range.start < 1.5 => {
            marks(&(10f64.powf(range.start)..10f64.powf(range.end))).into_iter().map(f64::log10).collect()
        }
        None => {
            let step = ((range.end - range.start) / MARKS as f64).ceil() as usize;
            decades.step_by(step).map(f64::from).filter(|at| range.contains(at)).collect()
        }
    }
}

/// The range of some values with a margin of a twentieth; never empty.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    if low > high {
        return 0.0..1.0;
    }
    let margin = if high > low { (high - low) / 20. } else { low.abs().max(1.) / 20. };
    low - margin..high + margin
}

/// A number in at most four significant digits, without trailing zeros.
fn number(value: f64) -> String {
    if value == 0. {
        return "0".to_owned();
    }
    let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn failed(err: impl std::fmt::Display) -> Error {
    Error::Msg(format!("curves: {err}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn panel(curves: Vec<Curve>) -> Panel {
        Panel::new("reconstruction", "epoch", "squared error per unit", curves)
    }

    #[test]
    fn a_panel_holds_its_labels_its_legend_and_a_mark_for_each_finite_point() {
        let points = vec![(1., 0.5), (2., f64::NAN), (3., 0.25), (4., 0.125)];
        let curve = Curve::new("layer 1", points);
        let svg = draw(&[panel(vec![curve])]).unwrap();
        for text in ["reconstruction", "epoch", "squared error per unit", "layer 1"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.trim_end().ends_with("</svg>"));
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn panels_without_points_or_with_one_still_draw() {
        let one = Curve::new("one", [(1., 7.)]);
        let svg = draw(&[panel(vec![]), panel(vec![one])]).unwrap();
        assert!(svg.contains(&format!("width=\"{}\"", 2 * PANEL.0)));
        assert_eq!(svg.matches("<circle").count(), 1);
    }

    #[test]
    fn pixels_show_each_curve_in_its_colour() {
        let curves = [1., 2.].map(|y| Curve::new("a", [(0., y), (1., 10. * y)]));
        let picture = draw_pixels(&[panel(curves.to_vec()).log()]).unwrap();
        for RGBColor(r, g, b) in [COLOURS[0], COLOURS[1]] {
            let n = picture.pixels().filter(|pixel| pixel.0 == [r, g, b]).count();
            assert!(n > 200, "{n} pixels of {r} {g} {b}");
        }
    }

    #[test]
    fn a_legend_stands_below_in_as_many_columns_as_fit() {
        let of = |names: &[&str]| {
            Legend::of(&panel(names.iter().map(|&name| Curve::new(name, [(0., 1.)])).collect()), 15)
        };
        assert_eq!(of(&[]).height(), 0);
        assert_eq!(of(&["a", "b", "c"]).rows, 1);
        let long = "a name of a third of the panel";
        assert_eq!(of(&[long; 4]).rows, 4);
        let half = "a fifth of it";
        assert_eq!((of(&[half; 3]).rows, of(&[half; 4]).rows), (1, 2));
        // The last of two rows lies within the picture.
        let curves = [half; 4].map(|name| Curve::new(name, [(0., 1.), (1., 2.)]));
        let picture = draw_pixels(&[panel(curves.to_vec()), panel(vec![])]).unwrap();
        assert_eq!(picture.dimensions(), (2 * PANEL.0, PANEL.1 + of(&[half; 4]).height()));
        let RGBColor(r, g, b) = COLOURS[3];
        let below = picture.enumerate_pixels().filter(|(_, y, _)| *y > PANEL.1 + 20);
        assert!(below.filter(|(.., pixel)| pixel.0 == [r, g, b]).count() >= 40);
    }

    #[test]
    fn a_sharp_turn_stays_within_the_plot() {
        // Up, and down again a pixel beside.
        let turns = Curve::new("a", [(0., 0.), (0.001, 1.), (0.002, 0.2), (1., 0.5)]);
        let picture = draw_pixels(&[panel(vec![turns])]).unwrap();
        let RGBColor(r, g, b) = COLOURS[0];
        let highest = picture.enumerate_pixels().filter(|(.., pixel)| pixel.0 == [r, g, b]);
        assert!(highest.map(|(_, y, _)| y).min().unwrap() > 36);
    }

    #[test]
    fn marks_of_a_logarithmic_axis_are_round() {
        let shown = |low: f64, high: f64| -> Vec<String> {
            log_marks(&(low.log10()..high.log10())).iter().map(|at| number(10f64.powf(*at))).collect()
        };
        assert_eq!(shown(0.04, 20.), ["0.05", "0.1", "0.2", "0.5", "1", "2", "5", "10"]);
        assert_eq!(shown(0.02, 200.), ["0.03", "0.1", "0.3", "1", "3", "10", "30", "100"]);
        assert_eq!(shown(1e-6, 2e3), ["0.000001", "0.0001", "0.01", "1", "100"]);
        assert_eq!(shown(6.1, 6.4), ["6.1", "6.2", "6.3", "6.4"]);
    }

    #[test]
    fn a_range_has_a_margin_and_is_never_empty() {
        assert_eq!(range([0., 20.].into_iter()), -1.0..21.0);
        assert_eq!(range([0.].into_iter()), -0.05..0.05);
        assert_eq!(range(std::iter::empty()), 0.0..1.0);
    }

    #[test]
    fn numbers_keep_what_matters() {
        let cases = [(0., "0"), (12., "12"), (0.05, "0.05"), (-1.25, "-1.25"), (1234.6, "1235")];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
        assert_eq!(number(0.1 + 0.2), "0.3");
    }
}
