//! Curves as one SVG or PNG: panels side by side, each with labelled axes and a legend.
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
}

impl Curve {
    /// A line through points in the order of `x`.
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self { name: name.into(), points: points.into_iter().collect() }
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
    /// Whether the vertical axis is logarithmic; points that are not above 0 are then left out.
    pub log_y: bool,
    /// The lines in it; without a point the panel shows empty axes.
    pub curves: Vec<Curve>,
}

impl Panel {
    /// A plot of these lines, with a linear vertical axis.
    pub fn new(
        title: impl Into<String>,
        x_label: impl Into<String>,
        y_label: impl Into<String>,
        curves: Vec<Curve>,
    ) -> Self {
        let (title, x_label, y_label) = (title.into(), x_label.into(), y_label.into());
        Self { title, x_label, y_label, log_y: false, curves }
    }

    /// The same with a logarithmic vertical axis.
    pub fn log(self) -> Self {
        Self { log_y: true, ..self }
    }
}

/// Width and height of a panel, in pixels.
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
    draw_on(SVGBackend::with_string(&mut svg, size_of(panels)?).into_drawing_area(), panels, 12)?;
    Ok(svg)
}

/// Draws the panels in a row, as pixels.
///
/// # Errors
/// As [`draw`].
pub fn draw_pixels(panels: &[Panel]) -> Result<RgbImage> {
    let (width, height) = size_of(panels)?;
    let mut picture = RgbImage::from_pixel(width, height, Rgb([255; 3]));
    // Letters of 8 pixels: the room that a legend leaves for those of a 15-point font.
    draw_on(Raster::new(&mut picture).into_drawing_area(), panels, 15)?;
    Ok(picture)
}

/// Width and height of the whole.
fn size_of(panels: &[Panel]) -> Result<(u32, u32)> {
    match panels.len() {
        0 => candle::bail!("curves: there must be at least 1 panel, got none"),
        n => Ok((PANEL.0 * n as u32, PANEL.1)),
    }
}

/// `legend` is the size of its letters.
fn draw_on<B: DrawingBackend>(root: DrawingArea<B, Shift>, panels: &[Panel], legend: u32) -> Result<()> {
    root.fill(&WHITE).map_err(failed)?;
    for (area, panel) in root.split_evenly((1, panels.len())).iter().zip(panels) {
        draw_panel(area, panel, legend)?;
    }
    root.present().map_err(failed)
}

fn draw_panel<B: DrawingBackend>(area: &DrawingArea<B, Shift>, panel: &Panel, legend: u32) -> Result<()> {
    let scaled = |y: f64| if panel.log_y { y.log10() } else { y };
    let finite = |curve: &Curve| -> Vec<(f64, f64)> {
        let scaled = curve.points.iter().map(|&(x, y)| (x, scaled(y)));
        scaled.filter(|(x, y)| x.is_finite() && y.is_finite()).collect()
    };
    let curves: Vec<_> = panel.curves.iter().map(|curve| (&curve.name, finite(curve))).collect();
    let points = || curves.iter().flat_map(|(_, points)| points);
    let (x, y) = (range(points().map(|p| p.0)), range(points().map(|p| p.1)));
    let y_marks = if panel.log_y { log_marks(&y) } else { marks(&y) };
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(38)
        .y_label_area_size(64)
        .build_cartesian_2d(x.clone(), Marked { axis: y.clone().into(), marks: y_marks })
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .x_desc(&panel.x_label)
        .y_desc(&panel.y_label)
        .x_labels(MARKS)
        .x_label_formatter(&|x| number(*x))
        .y_label_formatter(&|&y| number(if panel.log_y { 10f64.powf(y) } else { y }))
        .axis_desc_style(("sans-serif", 14))
        .label_style(("sans-serif", 12))
        .draw()
        .map_err(failed)?;
    for ((name, points), &colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))
            .map_err(failed)?
            .label(name.as_str())
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], colour.stroke_width(2)));
        // A run of one epoch has one point, which is no line.
        chart.draw_series(points.iter().map(|&p| Circle::new(p, 2, colour.filled()))).map_err(failed)?;
    }
    if !curves.is_empty() {
        let longest = curves.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0) as f64;
        // A mark of 30 pixels, letters about half as wide as they are high, and lines a third
        // apart.
        let (width, height) = chart.plotting_area().dim_in_pixel();
        let size = f64::from(legend);
        let of_legend = (45. + 0.55 * size * longest, 15. + 1.35 * size * curves.len() as f64);
        let lines: Vec<Vec<(f64, f64)>> = curves
            .iter()
            .map(|(_, points)| points.iter().map(|p| (place(p.0, &x), place(p.1, &y))).collect())
            .collect();
        chart
            .configure_series_labels()
            .position(emptiest_place(&lines, of_legend, (f64::from(width), f64::from(height))))
            .background_style(WHITE.mix(0.8))
            .border_style(RGBColor(190, 190, 190))
            .label_font(("sans-serif", legend))
            .draw()
            .map_err(failed)?;
    }
    Ok(())
}

/// How far into a range a value lies, from 0 to 1.
fn place(value: f64, range: &Range<f64>) -> f64 {
    (value - range.start) / (range.end - range.start)
}

/// The place of a legend in a panel, both of so many pixels, that hides least of the lines, whose
/// points are shares of the panel from its lower left.
fn emptiest_place(lines: &[Vec<(f64, f64)>], legend: (f64, f64), panel: (f64, f64)) -> SeriesLabelPosition {
    use SeriesLabelPosition::*;
    const STEPS: u32 = 20;
    let between = |pair: &[(f64, f64)]| -> Vec<(f64, f64)> {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        let at = |t: f64| (x0 + t * (x1 - x0), y0 + t * (y1 - y0));
        (0..=STEPS).map(|step| at(f64::from(step) / f64::from(STEPS))).collect()
    };
    let inked: Vec<(f64, f64)> = lines
        .iter()
        .flat_map(|line| line.windows(2).flat_map(between).chain(line.iter().copied()).collect::<Vec<_>>())
        .collect();
    let (width, height) = (legend.0 / panel.0, legend.1 / panel.1);
    let hidden = |left: f64, bottom: f64| {
        let covers = |low: f64, size: f64, at: f64| (low..=low + size).contains(&at);
        inked.iter().filter(|&&(x, y)| covers(left, width, x) && covers(bottom, height, y)).count()
    };
    let between_rows = |x: f64, y: f64| {
        let free = ((panel.0 - legend.0).max(0.), (panel.1 - legend.1).max(0.));
        // A little way from the border, as plotters has it.
        Coordinate((x * (free.0 - 10.) + 5.) as i32, ((1. - y) * free.1) as i32)
    };
    // Where another hides nothing less than a corner does, the corner it is.
    let places = [
        (1., 1., UpperRight),
        (1., 0., LowerRight),
        (0., 1., UpperLeft),
        (0., 0., LowerLeft),
        (1., 0.5, MiddleRight),
        (0., 0.5, MiddleLeft),
        (1., 0.7, between_rows(1., 0.7)),
        (1., 0.3, between_rows(1., 0.3)),
        (0., 0.7, between_rows(0., 0.7)),
        (0., 0.3, between_rows(0., 0.3)),
        (0.5, 1., UpperMiddle),
        (0.5, 0., LowerMiddle),
        (0.5, 0.5, MiddleMiddle),
    ];
    let hides = places.into_iter().map(|(x, y, place)| (hidden(x * (1. - width), y * (1. - height)), place));
    hides.min_by_key(|(n, _)| *n).map_or(UpperRight, |(_, place)| place)
}

/// An axis with its marks where they were asked for.
struct Marked {
    axis: RangedCoordf64,
    marks: Vec<f64>,
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
        assert_eq!(picture.dimensions(), PANEL);
        for RGBColor(r, g, b) in [COLOURS[0], COLOURS[1]] {
            let n = picture.pixels().filter(|pixel| pixel.0 == [r, g, b]).count();
            assert!(n > 200, "{n} pixels of {r} {g} {b}");
        }
    }

    #[test]
    fn a_legend_goes_where_no_curve_is() {
        let place = |lines: &[Vec<(f64, f64)>]| emptiest_place(lines, (160., 80.), (400., 200.));
        let falling = [vec![(0., 0.95), (0.3, 0.3), (0.6, 0.1), (1., 0.05)]];
        assert!(matches!(place(&falling), SeriesLabelPosition::UpperRight));
        let rising = [vec![(0., 0.05), (0.3, 0.3), (0.8, 0.8), (1., 0.95)]];
        assert!(matches!(place(&rising), SeriesLabelPosition::LowerRight));
        // From side to side with no point between: along the top and the bottom, and a third one
        // that leaves room above it.
        let level = |ys: &[f64]| ys.iter().map(|&y| vec![(0., y), (1., y)]).collect::<Vec<_>>();
        assert!(matches!(place(&level(&[0.05, 0.95])), SeriesLabelPosition::MiddleRight));
        let SeriesLabelPosition::Coordinate(x, y) = place(&level(&[0.05, 0.4, 0.95])) else {
            panic!("none of the three rows is free")
        };
        let (top, bottom) = (1. - f64::from(y) / 200., 1. - f64::from(y + 80) / 200.);
        assert!(top < 0.95 && bottom > 0.4 && x > 200 && x + 160 <= 400, "{x} {y}");
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
